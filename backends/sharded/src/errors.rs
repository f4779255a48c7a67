use queue_core::backend::Backend as _;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result, RetryAdvice};

use crate::backend::ShardedBackend;
use crate::names::shard_name;

/// Returns the error of the first shard as that of its queue, which exists if and only if this shard does.
pub(crate) fn of_queue(error: Error, queue: &QueueName) -> Error {
    if error.is_queue_gone() || error.kind() == ErrorKind::QueueExists {
        return error.with_queue(queue);
    }
    error.of_shard(queue, 0)
}

impl ShardedBackend {
    /// Returns the error of a shard as that of its queue. Tells a queue that does not exist from one of whose shards in use one
    /// is missing: nothing else may, so that all operations say the same.
    pub(crate) async fn of_shard(&self, error: Error, queue: &QueueName, shard: u32) -> Error {
        if shard == 0 {
            return of_queue(error, queue);
        }
        if !error.is_queue_gone() || shard >= self.topology.known().active {
            return error.of_shard(queue, shard);
        }
        let operation = error.operation();
        let name = match shard_name(queue, 0, operation) {
            Ok(name) => name,
            Err(error) => return error,
        };
        match self.first().metadata(&name).await {
            Ok(_) => shard_is_missing(queue, shard, operation),
            Err(error) => of_queue(error, queue),
        }
    }
}

/// Returns the error of a shard that has to be there, and is not.
pub(crate) fn shard_is_missing(queue: &QueueName, shard: u32, operation: Operation) -> Error {
    let detail = "it is missing, and in use; a resize to the same number of shards creates it";
    let error = Error::new(ErrorKind::Storage, operation)
        .with_detail(detail)
        .of_shard(queue, shard);
    match operation {
        // A resize, or somebody who deletes the queue, may be on its way.
        Operation::Put | Operation::Apply | Operation::CreateQueue => error,
        _ => error.with_retry(RetryAdvice::Permanent),
    }
}

/// Returns the error of a queue without its first shard whose other shards have messages: put by a program that did not create
/// the queue, before its creator has come to the first shard, which it creates last.
pub(crate) fn first_is_missing(queue: &QueueName) -> Error {
    let detail = "it is missing, and others have messages: the queue is being created or deleted, or was not to the end";
    Error::new(ErrorKind::Storage, Operation::Properties)
        .with_detail(detail)
        .of_shard(queue, 0)
        .with_retry(RetryAdvice::Temporary)
}

/// Whether nothing was put, for a reason that another shard may not have.
pub(crate) fn may_go_elsewhere(error: &Error) -> bool {
    error.outcome() == Outcome::NotDone && error.retry() != RetryAdvice::Permanent
}

/// Takes a shard that does not exist for one that has nothing.
pub(crate) fn unless_missing(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.is_queue_gone() => Ok(()),
        done => done,
    }
}
