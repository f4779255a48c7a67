//! The server of `queues serve` over SQLite with `synchronous=FULL`, beside Azurite, which writes its files every 5 seconds,
//! and beside the same server over an engine that does nothing. Each is a process of its own.

use std::path::Path;
use std::time::Duration;

use queue_tests::azurite::Azurite;

use crate::report::{Table, in_turn};
use crate::serving::Serving;
use crate::wire::{self, Connection};
use crate::{Options, Outcome, memory, runtime, sdk};

const SQLITE: &str = "`queues serve`, SQLite, FULL";
const NOTHING: &str = "`queues serve`, no storage";

/// The way of a message that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trip {
    /// Put on the queue.
    Put,
    /// Put; then a message, this one or another, is got and deleted, so that the queue stays short.
    Whole,
}

/// The shorter queue first: Azurite becomes slower with the messages that are left.
const TRIPS: [(Trip, &str); 2] = [(Trip::Whole, "put, get, delete"), (Trip::Put, "put")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Sdk,
    Bare,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Sqlite,
    Azurite,
    Nothing,
}

/// The numbers of connections and of messages, the latter for each server of ours and for Azurite, of which as many would
/// take minutes.
const SIZES: [(u32, u32, Option<u32>); 3] = [
    (1, 4000, Some(800)),
    (32, 30_000, Some(1600)),
    (256, 40_000, None),
];

/// Messages on the queue when the memory is read.
const BACKLOGS: [u32; 2] = [100_000, 1_000_000];

/// Connections that fill the queue.
const FILLING: u32 = 256;

/// Connections that are open and idle.
const IDLE: u32 = 1000;

/// A pause in which the server ends what it does without a request.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let version = Azurite::version();
    let azurite = match &version {
        Ok(version) => format!("Azurite {version}, files, 5 s"),
        Err(_) => "Azurite".to_owned(),
    };
    let mut tables = [Client::Sdk, Client::Bare].map(|client| {
        let (name, how) = match client {
            Client::Sdk => ("server-sdk", "the Rust SDK"),
            Client::Bare => ("server-bare", "a bare client"),
        };
        let title = format!("The server beside Azurite, through {how}");
        let table = Table::new(name, title, &[SQLITE, &azurite, NOTHING]).by("connections");
        (client, table)
    });
    if let Err(why) = &version {
        for (_, table) in &mut tables {
            table.note(why.to_string());
        }
    }
    for round in options.rounds() {
        for (connections, ours, of_azurite) in SIZES {
            for (client, table) in &mut tables {
                for side in in_turn(round, [Side::Sqlite, Side::Azurite, Side::Nothing]) {
                    let (name, messages) = match (side, of_azurite) {
                        (Side::Sqlite, _) => (SQLITE, ours),
                        (Side::Nothing, _) => (NOTHING, ours),
                        (Side::Azurite, Some(few)) if version.is_ok() => (&*azurite, few),
                        (Side::Azurite, _) => continue,
                    };
                    eprintln!("server, round {round}, {connections} connections: {name}");
                    let messages = options.messages(messages, connections);
                    let dir = options.scratch()?;
                    let rates = runtime()?.block_on(async {
                        let server = side.start(dir.path())?;
                        run(&server, *client, messages, connections).await
                    })?;
                    for (what, rate) in rates {
                        table.add(what, connections, name, rate);
                    }
                }
            }
        }
    }
    let [(_, sdk), (_, bare)] = tables;
    Ok(vec![sdk, bare])
}

impl Side {
    fn start(self, folder: &Path) -> Outcome<Serving> {
        match self {
            Self::Sqlite => Serving::sqlite(folder),
            Self::Azurite => Serving::azurite(folder),
            Self::Nothing => Serving::nothing(),
        }
    }
}

/// Measures each trip after a quarter as many messages that warm the server up. An error if a request fails, or if the queue
/// has another number of messages than were left on it.
async fn run(
    server: &Serving,
    client: Client,
    messages: u32,
    connections: u32,
) -> Outcome<Vec<(&'static str, f64)>> {
    Connection::open(server.port())
        .await?
        .create_queue()
        .await?;
    let queue = match client {
        Client::Sdk => Some(sdk::Queue::open_without_retries(&server.signed_url()).await?),
        Client::Bare => None,
    };
    let mut rates = Vec::new();
    let mut left = 0;
    for (trip, what) in TRIPS {
        let mut measured = 0.0;
        for messages in [messages.div_ceil(4), messages] {
            measured = match (&queue, trip) {
                (Some(queue), Trip::Put) => sdk::submit(queue, messages, connections).await?,
                (Some(queue), Trip::Whole) => sdk::exchange(queue, messages, connections).await?,
                (None, trip) => wire::run(server.port(), trip, messages, connections).await?,
            };
            left += match trip {
                Trip::Put => messages,
                Trip::Whole => 0,
            };
            expect(server.port(), left).await?;
        }
        rates.push((what, measured));
    }
    Ok(rates)
}

/// Checks how many messages are on the queue, on a new connection: servers close those that are idle for long.
async fn expect(port: u16, messages: u32) -> Outcome<()> {
    let counted = Connection::open(port).await?.count().await?;
    if counted == messages {
        Ok(())
    } else {
        Err(format!("{counted} messages are on the queue, not {messages}").into())
    }
}

/// Measures the memory of the server with messages on its queue, and with idle connections.
pub(crate) fn measure_memory(options: &Options) -> Outcome<Vec<Table>> {
    let title = "The memory of the server, SQLite, FULL";
    let mut table = Table::new("server-memory", title, &[SQLITE])
        .costs("MiB of the server's process", 1)
        .by("messages");
    for round in options.rounds() {
        let dir = options.scratch()?;
        let server = Serving::sqlite(dir.path())?;
        let (port, process) = (server.port(), server.process().ok_or("it is not ours")?);
        runtime()?.block_on(async {
            Connection::open(port).await?.create_queue().await?;
            let mut put = 0;
            for backlog in BACKLOGS {
                eprintln!("server, round {round}: memory with {backlog} messages");
                let backlog = options.messages(backlog, FILLING);
                wire::run(port, Trip::Put, backlog - put, FILLING).await?;
                put = backlog;
                // Some are got, and others put in their places.
                wire::run(port, Trip::Whole, backlog / 100, FILLING).await?;
                expect(port, backlog).await?;
                let mut add = |what: &str| {
                    let bytes = memory::resident_of(process).unwrap_or(f64::NAN);
                    table.add(what, backlog, SQLITE, bytes / f64::from(1 << 20));
                };
                tokio::time::sleep(SETTLE).await;
                add("no other connection");
                let mut idle = Connection::open_all(port, IDLE).await?;
                for connection in &mut idle {
                    connection.count().await?;
                }
                add("1000 idle connections");
            }
            Outcome::Ok(())
        })?;
    }
    Ok(vec![table])
}
