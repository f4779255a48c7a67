//! Connecting shards, and changing their number while programs use them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use queue_core::backend::{Backend, BackendExt as _, Resized, RetiredShard, Sharded, Sharding};
use queue_core::clock::Clock;
use queue_core::lock::Lock;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::backend::{Shard, ShardedBackend};
use crate::descriptor::Descriptor;
use crate::placement::{MAX_SHARDS, shard_of, shard_of_key};
use crate::topology::{NAME, TRUSTED, Topology};

/// Connects a [`ShardedBackend`].
///
/// All programs name the same accounts in the same order; a program may name more accounts after them, which a
/// [resize](Sharded::resize) uses.
#[derive(Debug, Clone)]
#[must_use = "shards do nothing until they are connected"]
pub struct Shards {
    number: u32,
    name: QueueName,
    patience: Option<Duration>,
}

impl Shards {
    /// Spreads each queue over so many shards in total, on the accounts in turn. The number of shards is that of the
    /// first program that connects: later, only a [resize](Sharded::resize) changes it.
    pub fn new(number: u32) -> Self {
        Self {
            number,
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
    /// messages, and half of the visibility timeout, but at least 10 s, if the other shards have none.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Connects the shards: reads the recorded number of shards, or records it if no program has done so before.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without an account, for a number outside 1 to [`MAX_SHARDS`](crate::MAX_SHARDS), and
    /// if the shards are on other accounts, which the error names; the errors of the first account's storage.
    pub async fn open(
        self,
        accounts: Vec<Arc<dyn Backend>>,
        clock: Arc<dyn Clock>,
    ) -> Result<ShardedBackend> {
        check_number(self.number)?;
        if accounts.is_empty() {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Open);
            return Err(error.with_detail("shards need an account").unsent());
        }
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

#[async_trait]
impl Sharding for Shards {
    fn whole(&self, queue: &QueueName) -> Option<QueueName> {
        shard_of(queue).map(|(whole, _)| whole)
    }

    async fn check(&self, accounts: &[Option<Arc<dyn Backend>>]) -> Result<()> {
        let found: Vec<_> = accounts.iter().map(Option::as_ref).collect();
        Topology::check(&found, &self.name).await.map(drop)
    }

    async fn connect(
        &self,
        accounts: Vec<Arc<dyn Backend>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>> {
        let opened = self.clone().open(accounts, clock).await?;
        Ok(Arc::new(opened))
    }
}

/// The pause between two looks at shards that are no longer in use.
const LOOK: Duration = Duration::from_secs(10);

/// For how long the lock of a resize is held without a renewal.
const HELD_FOR: Duration = Duration::from_secs(30);

#[async_trait]
impl Sharded for ShardedBackend {
    fn shards(&self) -> u32 {
        self.topology.known().active
    }

    fn shard_of_key(&self, key: &str) -> u32 {
        shard_of_key(key, self.shards())
    }

    fn failing(&self, queue: &QueueName) -> Vec<Error> {
        self.rounds.failing(queue)
    }

    async fn resize(&self, shards: u32) -> Result<Resized> {
        check_number(shards)?;
        let queue = self.topology.queue();
        let mut lock = Lock::take(self.first(), queue, &self.clock, HELD_FOR).await?;
        let resized = self.resize_locked(shards, &mut lock).await;
        if let Err(error) = lock.release().await {
            tracing::warn!(%queue, %error, "failed to release the lock of the shards; it is free in half a minute");
        }
        resized
    }

    async fn retired(&self) -> Result<Vec<RetiredShard>> {
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
}

impl ShardedBackend {
    async fn resize_locked(&self, shards: u32, lock: &mut Lock) -> Result<Resized> {
        let current = self.topology.read_now().await?;
        let accounts = self.topology.accounts().to_vec();
        let next = current.resized(accounts, shards);
        self.create_missing(&next, lock).await?;
        lock.renew().await?;
        self.topology.write(next.clone()).await?;
        // Queues that were created meanwhile have the shards of before.
        self.create_missing(&next, lock).await?;
        let mut resized = Resized::new(current.active, next.active, next.epoch);
        resized.retired = next.all() - next.active;
        Ok(resized)
    }

    async fn create_missing(&self, descriptor: &Descriptor, lock: &mut Lock) -> Result<()> {
        for queue in self.list_queues("").await? {
            lock.renew().await?;
            self.create_active(descriptor, &queue).await?;
        }
        Ok(())
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
        let mut retired = RetiredShard::new(queue.clone(), name, account.account());
        retired.messages = messages;
        retired.is_drained = messages == 0;
        Ok(Some(retired))
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
