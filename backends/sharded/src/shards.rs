//! Connecting shards, and changing their number while programs use them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use queue_core::backend::{Backend, BackendExt as _};
use queue_core::clock::Clock;
use queue_core::lock::Lock;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::placement::MAX_SHARDS;
use crate::topology::{NAME, TRUSTED, Topology};

/// Connects a [`ShardedBackend`].
///
/// All programs name the same accounts in the same order; a program may name more accounts after them, which a
/// [resize](ShardedBackend::resize) uses.
#[derive(Debug)]
#[must_use = "shards do nothing until they are connected"]
pub struct Shards {
    accounts: Vec<Arc<dyn Backend>>,
    number: u32,
    clock: Arc<dyn Clock>,
    name: QueueName,
    patience: Option<Duration>,
}

impl Shards {
    /// Spreads each queue over so many shards in total, on these accounts in turn. The number of shards is that of the
    /// first program that connects: later, only a [resize](ShardedBackend::resize) changes it.
    pub fn new(accounts: Vec<Arc<dyn Backend>>, number: u32, clock: Arc<dyn Clock>) -> Self {
        Self {
            accounts,
            number,
            clock,
            name: NAME,
            patience: None,
        }
    }

    /// Sets the name of the queue, on the first account, whose metadata records the shards. The default is `shards`.
    pub fn name(mut self, name: QueueName) -> Self {
        self.name = name;
        self
    }

    /// Sets how long a receive waits for each shard that it has asked. The default is 200 ms if other shards have
    /// messages, and half of the visibility timeout, but at least 10 s, if they have not.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Checks the record of the shards before missing accounts are created. `accounts` are in the order in which
    /// programs name them, `None` for an account that does not exist yet, such as a file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if an account is missing that has shards or records which shards there are, and if
    /// the shards are on other accounts; the storage's errors.
    pub async fn check(accounts: &[Option<Arc<dyn Backend>>]) -> Result<()> {
        let found: Vec<_> = accounts.iter().map(Option::as_ref).collect();
        Topology::check(&found, &NAME).await.map(drop)
    }

    /// Connects the shards: reads the recorded number of shards, or records it if no program has done so before.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without an account, for a number outside 1 to [`MAX_SHARDS`](crate::MAX_SHARDS), and
    /// if the shards are on other accounts, which the error names; the errors of the first account's storage.
    pub async fn connect(self) -> Result<ShardedBackend> {
        check_number(self.number)?;
        if self.accounts.is_empty() {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Open);
            return Err(error.with_detail("shards need an account").unsent());
        }
        let (accounts, clock) = (self.accounts, self.clock);
        let opened = Topology::open(&accounts, self.name, self.number, Arc::clone(&clock));
        let topology = opened.await?;
        Ok(ShardedBackend::new(
            accounts,
            topology,
            clock,
            self.patience,
        ))
    }
}

/// The pause between two looks at shards that are no longer in use.
const LOOK: Duration = Duration::from_secs(10);

/// For how long the lock of a resize is held without a renewal.
const HELD_FOR: Duration = Duration::from_secs(30);

/// A change of the number of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// The number of shards before.
    pub before: u32,
    /// The number of shards that messages are put on now.
    pub shards: u32,
    /// The version of the record of the shards, which all programs read within a minute.
    pub epoch: u64,
    /// The number of shards that have only what was put on them before. Retired shards are received from as long as
    /// they exist.
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
    /// The approximate number of messages on the shard, invisible messages included, at the last look.
    pub messages: usize,
    /// Whether the shard was empty at each look for longer than any program may put messages on it, so that the shard
    /// can be deleted.
    pub is_drained: bool,
}

impl ShardedBackend {
    /// Changes the number of shards, of all queues, while programs use them. Shards that are no longer in use stay, and are
    /// received from: [`retired`](Self::retired) tells when they can be deleted.
    ///
    /// A resize to the same number creates missing shards. A resize that fails half way can be called again.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a number outside 1 to [`MAX_SHARDS`]; [`ErrorKind::Conflict`] while another
    /// program resizes; the storage's errors.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the number may have been changed, and another program can resize
    /// only half a minute later.
    pub async fn resize(&self, shards: u32) -> Result<Resized> {
        check_number(shards)?;
        let queue = self.topology.queue();
        let mut lock = Lock::take(self.first(), queue, &self.clock, HELD_FOR).await?;
        let resized = self.resize_locked(shards, &mut lock).await;
        if let Err(error) = lock.release().await {
            tracing::warn!(%queue, %error, "failed to release the lock of the shards; it is free in half a minute");
        }
        resized
    }

    async fn resize_locked(&self, shards: u32, lock: &mut Lock) -> Result<Resized> {
        let current = self.topology.read_now().await?;
        let accounts = self.topology.accounts().to_vec();
        let next = current.resized(accounts, shards);
        self.create_missing(&next, lock).await?;
        lock.renew().await?;
        self.topology.write(next.clone()).await?;
        // Queues that were created meanwhile have the shards of before.
        self.create_missing(&next, lock).await?;
        Ok(Resized {
            before: current.active,
            shards: next.active,
            epoch: next.epoch,
            retired: next.all() - next.active,
        })
    }

    async fn create_missing(&self, descriptor: &Descriptor, lock: &mut Lock) -> Result<()> {
        for queue in self.list_queues("").await? {
            lock.renew().await?;
            self.create_active(descriptor, &queue).await?;
        }
        Ok(())
    }

    /// Watches the shards that are no longer in use, for a little longer than programs may still put messages on them,
    /// which is two minutes. Returns at once if no shard is retired.
    ///
    /// Nobody but you deletes retired shards: `is_drained` says which can be deleted.
    ///
    /// # Errors
    /// The storage's errors.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn retired(&self) -> Result<Vec<RetiredShard>> {
        let until = self.clock.monotonic().saturating_add(TRUSTED + 2 * LOOK);
        let mut shards = self.look_at_retired().await?;
        while !shards.is_empty() && self.clock.monotonic() < until {
            self.clock.sleep(LOOK).await;
            let mut now = self.look_at_retired().await?;
            for shard in &mut now {
                let before = shards.iter().find(|before| before.name == shard.name);
                shard.is_drained &= before.is_some_and(|before| before.is_drained);
            }
            shards = now;
        }
        Ok(shards)
    }

    async fn look_at_retired(&self) -> Result<Vec<RetiredShard>> {
        let descriptor = self.topology.read_now().await?;
        let mut shards = Vec::new();
        for queue in self.list_queues("").await? {
            let retired = descriptor.active..descriptor.all();
            let looks = retired.map(|number| self.look_at(&descriptor, &queue, number));
            shards.extend(try_join_all(looks).await?.into_iter().flatten());
        }
        Ok(shards)
    }

    async fn look_at(
        &self,
        descriptor: &Descriptor,
        queue: &QueueName,
        number: u32,
    ) -> Result<Option<RetiredShard>> {
        let Shard { account, name } =
            self.shard(descriptor, queue, number, Operation::Properties)?;
        let messages = match account.properties(&name).await {
            Ok(properties) => properties.approximate_count,
            Err(error) if error.is_queue_gone() => return Ok(None),
            Err(error) => return Err(error.of_shard(queue, number)),
        };
        Ok(Some(RetiredShard {
            queue: queue.clone(),
            account: account.account(),
            name,
            messages,
            is_drained: messages == 0,
        }))
    }
}

fn check_number(shards: u32) -> Result<()> {
    if (1..=MAX_SHARDS).contains(&shards) {
        return Ok(());
    }
    let detail = format!("the number of shards must be 1 to {MAX_SHARDS}, not {shards}");
    let error = Error::new(ErrorKind::InvalidInput, Operation::Open);
    Err(error.with_detail(detail).unsent())
}
