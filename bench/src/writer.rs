//! A bare writer thread: the limit of an API on SQLite that acknowledges each message.
//!
//! Tasks send one operation at a time to the thread and wait for its answer. The thread commits all the
//! operations that it finds waiting in one transaction, and answers them afterwards. There is no envelope, no
//! lease and no renewal.

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use queue_instructions::Parcel;
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, oneshot};

use crate::Outcome;
use crate::raw::{Bare, CLAIM, DELETE, INSERT, LATER, NOW};
use crate::tasks::{submit_with, take_with};

/// The largest number of operations in one transaction.
const MOST: usize = 1024;

enum Operation {
    Insert(Vec<u8>, oneshot::Sender<()>),
    Claim(oneshot::Sender<Option<(i64, Vec<u8>)>>),
    Delete(i64, oneshot::Sender<()>),
}

struct Writer {
    operations: mpsc::UnboundedSender<Operation>,
    bare: Bare,
}

/// Submits, then takes and deletes, messages in as many tasks; returns both rates, in messages per second.
pub(crate) async fn run(path: &Path, bare: Bare, messages: u32, tasks: u32) -> Outcome<(f64, f64)> {
    let connection = bare.open(path)?;
    let (operations, receiver) = mpsc::unbounded_channel();
    let thread = thread::spawn(|| write(connection, receiver));
    let writer = Arc::new(Writer { operations, bare });
    let rates = measure(&writer, messages, tasks).await;
    drop(writer);
    ended(thread)?;
    rates
}

async fn measure(writer: &Arc<Writer>, messages: u32, tasks: u32) -> Outcome<(f64, f64)> {
    let submit = {
        let writer = Arc::clone(writer);
        move |number| {
            let writer = Arc::clone(&writer);
            async move {
                let body = writer.bare.encode(number)?;
                writer.ask(|answer| Operation::Insert(body, answer)).await
            }
        }
    };
    let take = {
        let writer = Arc::clone(writer);
        move || {
            let writer = Arc::clone(&writer);
            async move {
                let Some((seq, body)) = writer.ask(Operation::Claim).await? else {
                    return Ok(0);
                };
                let _: Parcel = serde_json::from_slice(&body)?;
                writer.ask(|answer| Operation::Delete(seq, answer)).await?;
                Ok(1)
            }
        }
    };
    let submitted = submit_with(messages, tasks, submit).await?;
    Ok((submitted, take_with(messages, tasks, take).await?))
}

impl Writer {
    async fn ask<T>(&self, operation: impl FnOnce(oneshot::Sender<T>) -> Operation) -> Outcome<T> {
        let (answer, answered) = oneshot::channel();
        let sent = self.operations.send(operation(answer));
        sent.map_err(|_| "the writer has ended")?;
        Ok(answered.await?)
    }
}

fn ended(thread: JoinHandle<Outcome<()>>) -> Outcome<()> {
    thread.join().map_err(|_| "the writer panicked")?
}

/// Ends when all senders are gone, or with the first error, at which all who wait get an error too.
fn write(
    mut connection: Connection,
    mut operations: mpsc::UnboundedReceiver<Operation>,
) -> Outcome<()> {
    while let Some(first) = operations.blocking_recv() {
        let transaction = connection.transaction()?;
        let (mut done, mut claims) = (Vec::new(), Vec::new());
        {
            let mut insert = transaction.prepare_cached(INSERT)?;
            let mut delete = transaction.prepare_cached(DELETE)?;
            let mut next = Some(first);
            while let Some(operation) = next {
                match operation {
                    Operation::Insert(body, answer) => {
                        insert.execute(params![0, body])?;
                        done.push(answer);
                    }
                    Operation::Delete(seq, answer) => {
                        delete.execute([seq])?;
                        done.push(answer);
                    }
                    Operation::Claim(answer) => claims.push(answer),
                }
                next = if done.len() + claims.len() < MOST {
                    operations.try_recv().ok()
                } else {
                    None
                };
            }
        }
        let mut claimed: Vec<(i64, Vec<u8>)> = Vec::new();
        if !claims.is_empty() {
            let mut claim = transaction.prepare_cached(CLAIM)?;
            let rows = claim.query_map(params![LATER, NOW, claims.len() as i64], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            claimed = rows.collect::<Result<_, _>>()?;
        }
        transaction.commit()?;
        // A task that has ended needs no answer.
        for answer in done {
            let _ = answer.send(());
        }
        let mut claimed = claimed.into_iter();
        for answer in claims {
            let _ = answer.send(claimed.next());
        }
    }
    Ok(())
}
