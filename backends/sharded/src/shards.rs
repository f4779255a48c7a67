use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::backend::ShardedBackend;
use crate::resize::check_number;
use crate::topology::{NAME, Topology};

/// Connects a [`ShardedBackend`].
///
/// All programs name the same accounts in the same order; one may name more after them, which a
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
    /// Spreads each queue over so many shards in total, on these accounts in turn. The number is that of the first program
    /// that connects: later, only a [resize](ShardedBackend::resize) changes it.
    pub fn new(accounts: Vec<Arc<dyn Backend>>, number: u32, clock: Arc<dyn Clock>) -> Self {
        Self {
            accounts,
            number,
            clock,
            name: NAME,
            patience: None,
        }
    }

    /// Sets the name of the queue on the first account that keeps which shards there are. The default is `shards`.
    pub fn name(mut self, name: QueueName) -> Self {
        self.name = name;
        self
    }

    /// Sets how long a receive waits for each shard that it has asked. The default is 200 ms if others have messages, and half
    /// of the visibility timeout, but at least 10 s, if they have not.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Checks what is there before the rest is created: the accounts in their order, `None` for one that does not exist yet,
    /// such as a file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if one is missing that has shards, or the one that keeps which shards there are, and if the
    /// accounts are others; those of the storage.
    pub async fn check(accounts: &[Option<Arc<dyn Backend>>]) -> Result<()> {
        let found: Vec<_> = accounts.iter().map(Option::as_ref).collect();
        Topology::check(&found, &NAME).await.map(drop)
    }

    /// Connects them: reads which shards there are, or records it if this is the first program.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without an account, for a number outside 1 to [`MAX_SHARDS`](crate::MAX_SHARDS), and if
    /// the shards are on other accounts, which the error names; those of the first account's storage.
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
