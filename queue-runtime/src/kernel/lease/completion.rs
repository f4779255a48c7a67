use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use queue_core::backend::{
    Completion, Mark, PackItem, PopReceipt, RECORD_RETENTION, StorageId, Swap, Token,
    TransactionOutcome, Transactions,
};
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, RetryAdvice};

use super::state::{Leased, Promise, RequestTurn};
use super::storage_time::StorageTime;

/// How long the absence of a record proves that a transaction was not committed. Half of the record's retention, which
/// is in the storage's time: this process's clock may be slower.
const ABSENCE_PROVES_FOR: Duration = RECORD_RETENTION.checked_div(2).expect("not by zero");

/// What is completed in place of a message that is an item of a pack.
#[derive(Debug, Clone)]
pub(crate) struct CompletedItem {
    /// The pack, or the message that the item has become.
    pub(crate) id: StorageId,
    pub(crate) receipt: PopReceipt,
    pub(crate) dequeue_count: usize,
    /// The longest visibility timeout of an update of `id`.
    pub(crate) visibility: Duration,
    /// `None` if the item has become a message of its own.
    pub(crate) item: Option<PackItem>,
}

/// Completes a leased message within an application's transactions.
#[derive(Debug, Clone)]
pub(crate) struct Completer(pub(super) Arc<Leased>);

impl Completer {
    /// Whether the message has a [group](queue_core::backend::NewMessage::group).
    pub(crate) fn has_group(&self) -> bool {
        self.0.has_group
    }

    /// The queue and the id of the message.
    pub(crate) fn message(&self) -> (&QueueName, &StorageId) {
        (&self.0.queue, &self.0.id)
    }

    /// Returns the last known receipt.
    pub(crate) fn receipt(&self) -> PopReceipt {
        self.0.receipt()
    }

    /// Returns the storage's time.
    pub(crate) fn storage_time(&self) -> StorageTime {
        self.0.storage_time
    }

    /// Returns the completion of the leased message, with what is recorded for its idempotency key, and the swap that
    /// releases its unique key. Does not wait for a renewal, which may be waiting for the end of the transaction.
    pub(crate) fn completion<'s>(
        &'s self,
        dequeue_count: usize,
        token: Token,
        (finish, release): (Option<Swap>, Option<Swap>),
        item: Option<&'s CompletedItem>,
    ) -> Completion<'s> {
        let leased = &self.0;
        let queue = &leased.queue;
        let mut completion = match item {
            Some(item) => {
                let receipt = item.receipt.clone();
                Completion::new(queue, &item.id, receipt, item.dequeue_count, token)
            }
            None => Completion::new(queue, &leased.id, leased.receipt(), dequeue_count, token),
        };
        completion.visibility = match item {
            Some(item) => item.visibility,
            None => leased.machine().longest_visibility(),
        };
        completion.item = item.and_then(|item| item.item);
        (completion.finish, completion.release) = (finish, release);
        completion
    }

    /// Records that a transaction, which is open now, has completed the message.
    pub(crate) fn promise(&self, mark: Mark) {
        // The message was there, so no earlier transaction that completed it was committed.
        *self.0.promise() = Promise::Open {
            mark,
            written_at: self.0.now(),
        };
    }

    /// Whether a transaction has completed the message, and has not been found to be rolled back.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn is_promised(&self) -> bool {
        !matches!(*self.0.promise(), Promise::None | Promise::RolledBack)
    }

    /// Refuses a message that is settled, or whose lease was given up.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.0.machine().is_abandoned() {
            return Err(self.0.ended());
        }
        Ok(())
    }
}

impl Leased {
    /// Finds out whether the transaction that completed the message was committed, once it has ended. The turn makes
    /// sure that the outcome is asked for only once, because the storage then forgets it.
    ///
    /// # Errors
    /// The errors of [`Transactions::outcomes`]. [`ErrorKind::Timeout`] while the transaction is open; with
    /// [`Outcome::Unknown`] if there is no record, which could have been removed already.
    pub(super) async fn conclude(&self, _turn: &mut RequestTurn) -> Result<Promise, Error> {
        let promise = *self.promise();
        let Promise::Open { mark, written_at } = promise else {
            return Ok(promise);
        };
        let transactions = transactions(self)?;
        let outcomes = transactions.outcomes(&[mark]).await?;
        let concluded = match outcomes.first() {
            Some(TransactionOutcome::Committed) => {
                self.machine().settled();
                Promise::Committed
            }
            Some(TransactionOutcome::RolledBack) => {
                if self.now().saturating_sub(written_at) > ABSENCE_PROVES_FOR {
                    return Err(self.asked_too_late());
                }
                Promise::RolledBack
            }
            Some(TransactionOutcome::Open) | None => return Err(self.still_open()),
        };
        let mut promise = self.promise();
        // Unless another transaction has completed the message meanwhile.
        if matches!(*promise, Promise::Open { mark: open, .. } if open == mark) {
            *promise = concluded;
        }
        drop(promise);
        if let (Promise::Committed, Some(token)) = (concluded, mark.token()) {
            transactions.forget(token);
        }
        Ok(concluded)
    }

    fn still_open(&self) -> Error {
        let detail = "the application's transaction that completes the message has not ended";
        Error::new(ErrorKind::Timeout, Operation::Delete)
            .with_queue(&self.queue)
            .with_outcome(Outcome::NotDone)
            .with_detail(detail)
    }

    fn asked_too_late(&self) -> Error {
        let detail = "the transaction ended too long ago: a record of its commit may have been removed already";
        Error::new(ErrorKind::Timeout, Operation::Delete)
            .with_queue(&self.queue)
            .with_retry(RetryAdvice::Permanent)
            .with_outcome(Outcome::Unknown)
            .with_detail(detail)
    }

    pub(super) fn promise(&self) -> MutexGuard<'_, Promise> {
        self.promised.hold()
    }
}

fn transactions(leased: &Leased) -> Result<Arc<dyn Transactions>, Error> {
    let transactions = leased.shared.backend.transactions();
    transactions.ok_or_else(|| unsupported(Operation::Delete).with_queue(&leased.queue))
}

/// Returns the error of an operation within a transaction on a storage that has none.
pub(crate) fn unsupported(operation: Operation) -> Error {
    let detail = "this storage has no transactions for the application's own tables; `sqlite:PATH` and `postgres://…` have";
    Error::new(ErrorKind::Unsupported, operation).with_detail(detail)
}
