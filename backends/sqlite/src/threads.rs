//! The two threads of a backend, which open, use and close the file.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use queue_core::Clock;
use queue_core::store_clock::StoreClock;
use tokio::sync::oneshot;

use crate::command::{Answer, Command};
use crate::failure::{Failure, Result};
use crate::file::connection::{self, Settings};
use crate::file::files::Identity;
use crate::reader::{Query, Reader};
use crate::wake::Peers;
use crate::writer::Writer;

/// The channels to the threads, and what they share. The threads end when the channels are dropped.
pub(super) struct Threads {
    pub(super) settings: Settings,
    pub(super) commands: Sender<Command>,
    pub(super) queries: Sender<Query>,
    pub(super) peers: Arc<Peers>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) store_clock: Arc<StoreClock>,
    pub(super) identity: Identity,
}

/// Opens the file: the writer first, because it creates and migrates the tables.
pub(super) async fn start(settings: Settings, clock: Arc<dyn Clock>) -> Result<Threads> {
    let store_clock = Arc::new(StoreClock::new(Arc::clone(&clock)));
    let (commands, command_queue) = mpsc::channel();
    let (ready, started) = oneshot::channel();
    let peers = Arc::new(Peers::none());
    let writers = (Arc::clone(&store_clock), Arc::clone(&peers));
    spawn("queue-sqlite-writer", move || {
        write(settings, writers, ready, &command_queue);
    })?;
    let (settings, identity) = started.await.unwrap_or(Err(Failure::Lost))?;

    let (readers, readers_clock) = (settings.clone(), Arc::clone(&store_clock));
    let (queries, query_queue) = mpsc::channel();
    let (ready, started) = oneshot::channel();
    spawn("queue-sqlite-reader", move || {
        let opened = connection::open_reader(&readers);
        let opened = opened.map(|connection| Reader::new(connection, readers_clock));
        match opened {
            Ok(reader) => {
                drop(ready.send(Ok(())));
                reader.serve(&query_queue);
            }
            Err(failure) => drop(ready.send(Err(failure))),
        }
    })?;
    started.await.unwrap_or(Err(Failure::Lost))?;
    Ok(Threads {
        settings,
        commands,
        queries,
        peers,
        clock,
        store_clock,
        identity,
    })
}

pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(())
}

fn write(
    settings: Settings,
    (store_clock, peers): (Arc<StoreClock>, Arc<Peers>),
    ready: oneshot::Sender<Result<(Settings, Identity)>>,
    commands: &Receiver<Command>,
) {
    let opened = connection::canonical(&settings.path).and_then(|path| {
        let settings = Settings { path, ..settings };
        Ok((connection::open_writer(&settings, &store_clock)?, settings))
    });
    let ((connection, files), settings) = match opened {
        Ok(opened) => opened,
        Err(failure) => return drop(ready.send(Err(failure))),
    };
    let identity = files.identity.clone();
    let prepare = |settings| Writer::prepare(&connection, files, store_clock, peers, settings);
    let closing = match prepare(settings.clone()) {
        Ok(mut writer) => {
            drop(ready.send(Ok((settings, identity))));
            writer.serve(commands)
        }
        Err(failure) => return drop(ready.send(Err(failure))),
    };
    drop(connection);
    for command in closing {
        command.answer(Ok(Answer::Done));
    }
}
