//! The connection of one transaction of a handler, and what its errors mean for the message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use queue_core::{Disposition, Error, ErrorKind, Failure, FollowUp, Operation};
use queue_sqlite::Begun;
use queue_sqlite::rusqlite::{self, Connection, ErrorCode, Transaction, TransactionBehavior};

use super::ending::{failed_with, is_of_the_storage, not_completed, put_back, refuse_promised};
use crate::kernel::context::Context;
use crate::kernel::panic::log_caught;
use crate::kernel::receive::Received;

/// What the application sets on a connection before its transaction.
pub(super) type SetUp = dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync;

/// What the application does in the transaction.
pub(super) type TransactionWork = Box<dyn FnOnce(&Transaction<'_>) -> Disposition + Send>;

/// The connection of one transaction, which leaves no transaction open when it is dropped, also after a panic: a
/// rollback may have been interrupted, and would keep the file from all others.
pub(super) struct Own {
    pub(super) connection: Connection,
    /// Whether a commit is that of a completed message. Other commits are refused: SQLite itself ends a transaction
    /// after some errors, and each further statement of a function that goes on would be committed by itself.
    commits: Arc<AtomicBool>,
}

/// How often the end of a transaction is tried.
const ROLLBACKS: u32 = 100;

impl Drop for Own {
    fn drop(&mut self) {
        for _ in 0..ROLLBACKS {
            if self.connection.is_autocommit() {
                return;
            }
            // An error shows in the next round.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        log_caught(|| {
            tracing::error!(
                "a transaction could not be rolled back, and keeps its file from all others"
            )
        });
    }
}

impl Own {
    /// Opens a connection, sets it up, and guards its commits.
    pub(super) fn open(context: &Context, set_up: Option<&SetUp>) -> Result<Self, Error> {
        let mut connection = queue_sqlite::connect(&*context.backend)?;
        let commits = Arc::new(AtomicBool::new(false));
        let is_allowed = Arc::clone(&commits);
        let refuses = move || !is_allowed.load(Ordering::Relaxed);
        let set_up = set_up.map_or(Ok(()), |set_up| set_up(&connection));
        let guarded = set_up.and_then(|()| connection.commit_hook(Some(refuses)));
        guarded.map_err(|error| {
            let failed = Error::new(ErrorKind::Storage, Operation::Open);
            failed
                .with_detail("a connection could not be set up")
                .with_source(error)
        })?;
        Ok(Self {
            connection,
            commits,
        })
    }

    /// Whatever fails before the function is called is not the message's failure.
    pub(super) fn transact<M>(
        &mut self,
        received: &Received<M>,
        work: TransactionWork,
        may_begin: &dyn Fn() -> bool,
    ) -> Option<Disposition> {
        let behavior = TransactionBehavior::Immediate;
        let tx = match self.connection.transaction_with_behavior(behavior) {
            Ok(tx) => tx,
            Err(error) => return Some(put_back(received, Failure::retry(error))),
        };
        let begun = match Begun::note(&*received.context.backend, &tx) {
            Ok(begun) => begun,
            Err(error) => return Some(put_back(received, Failure::retry(error))),
        };
        if !may_begin() {
            return None;
        }
        Some(match work(&tx) {
            Disposition::Complete(follow_ups) => {
                if let Err(disposition) = complete(received, &tx, begun, follow_ups) {
                    return Some(disposition);
                }
                self.commits.store(true, Ordering::Relaxed);
                match tx.commit() {
                    Ok(()) => Disposition::complete(),
                    Err(error) => failed(received, Failure::retry(error)),
                }
            }
            Disposition::Retry { after: None, error } => failed(received, error),
            other => other,
        })
    }
}

/// Completes the message in the transaction, or returns how it ends instead.
fn complete<M>(
    received: &Received<M>,
    tx: &Transaction<'_>,
    begun: Begun,
    follow_ups: Vec<FollowUp>,
) -> Result<(), Disposition> {
    refuse_promised(received)?;
    match begun.clear(tx) {
        Ok(true) => {}
        Ok(false) => {
            let why = "the transaction ended before the function returned: SQLite has rolled it back after an error, or the function \
                       has ended it";
            return Err(Disposition::retry(why));
        }
        Err(error) => return Err(failed(received, Failure::retry(error))),
    }
    let completed = received.complete_within(tx, follow_ups);
    completed.map_err(|problem| not_completed(received, problem, is_of_the_file))
}

fn failed<M>(received: &Received<M>, failure: Failure) -> Disposition {
    failed_with(received, failure, is_of_the_file)
}

/// Whether any statement on the file would meet this error. A table that is locked by its own connection, or an attached
/// file that cannot be written, is a mistake of the function, and a damaged row is the message's.
fn is_of_the_file(error: &(dyn std::error::Error + 'static)) -> bool {
    if error.downcast_ref().is_some_and(is_of_the_storage) {
        return true;
    }
    let error = error.downcast_ref::<rusqlite::Error>();
    matches!(
        error.and_then(rusqlite::Error::sqlite_error_code),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::OutOfMemory
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}
