use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::contract::Backend;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::QueueName;

/// What a [backend](Backend::sharded) tells of the shards over which it spreads its queues, and how their number is changed.
#[async_trait]
pub trait Sharded: Send + Sync {
    /// The number of shards that messages are put on, as far as this program knows.
    fn shards(&self) -> u32;

    /// Returns the shard on which messages with this [shard key](super::NewMessage::shard_key) are put now.
    fn shard_of_key(&self, key: &str) -> u32;

    /// Returns the errors of the shards of a queue that are not received from while others are: their messages wait.
    fn failing(&self, queue: &QueueName) -> Vec<Error>;

    /// Changes the number of shards, of all queues, while programs use them. Shards no longer in use stay, and are
    /// received from: [`retired`](Self::retired) tells when they can be deleted.
    ///
    /// A resize to the current number creates missing shards. A resize that fails half way can be called again.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a number that the backend does not allow;
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) while another program resizes; the storage's errors.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the number may have been changed, and another program can resize
    /// only half a minute later.
    async fn resize(&self, shards: u32) -> Result<Resized>;

    /// Watches the shards no longer in use, for a little longer than programs may still put messages on them, which is
    /// two minutes. Returns at once if no shard is retired.
    ///
    /// Nobody but you deletes retired shards: `is_drained` says which can be deleted.
    ///
    /// # Errors
    /// The storage's errors.
    ///
    /// # Cancel safety
    /// Cancel safe.
    async fn retired(&self) -> Result<Vec<RetiredShard>>;
}

/// A way to spread queues over several backends, the accounts, by which a service connects its shards.
///
/// All programs name the same accounts in the same order.
#[async_trait]
pub trait Sharding: fmt::Debug + Send + Sync + 'static {
    /// Returns the queue that a queue of an account is a shard of. `None` if the queue is no shard.
    fn whole(&self, queue: &QueueName) -> Option<QueueName>;

    /// Checks the accounts before missing ones are created: `None` for an account that does not exist yet, such as a file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if an account is missing that has shards or records
    /// which shards there are, and if the shards are on other accounts; the storage's errors.
    async fn check(&self, accounts: &[Option<Arc<dyn Backend>>]) -> Result<()>;

    /// Connects the accounts. Calling `connect` again after an error is safe.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) without an account, for a number of shards that is not
    /// allowed, and if the shards are on other accounts; the storage's errors.
    async fn connect(
        &self,
        accounts: Vec<Arc<dyn Backend>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>>;
}

/// A change of the number of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// The number of shards before the resize.
    pub before: u32,
    /// The number of shards that messages are put on now.
    pub shards: u32,
    /// The version of the record of the shards, which all programs read within a minute.
    pub epoch: u64,
    /// The number of shards that messages are no longer put on. Retired shards are received from as long as they exist.
    pub retired: u32,
}

/// A shard of a queue that messages are no longer put on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetiredShard {
    /// The logical queue that the shard belongs to.
    pub queue: QueueName,
    /// The name of the shard's own queue.
    pub name: QueueName,
    /// The URI of the account that has the shard.
    pub account: String,
    /// The approximate number of messages on the shard, invisible ones included, when [`retired`](Sharded::retired)
    /// last counted them.
    pub messages: usize,
    /// Whether the shard was empty whenever [`retired`](Sharded::retired) counted, for longer than any program may put
    /// messages on it, so that it can be deleted.
    pub is_drained: bool,
}

impl Resized {
    /// Creates the report of a resize, after which no shard is retired.
    #[must_use]
    pub fn new(before: u32, shards: u32, epoch: u64) -> Self {
        Self {
            before,
            shards,
            epoch,
            retired: 0,
        }
    }
}

impl RetiredShard {
    /// Creates the report of a shard of a queue, with its own name and the URI of its account.
    #[must_use]
    pub fn new(queue: QueueName, name: QueueName, account: impl Into<String>) -> Self {
        Self {
            queue,
            name,
            account: account.into(),
            messages: 0,
            is_drained: true,
        }
    }
}
