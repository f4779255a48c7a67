use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{Backend, BackendExt as _};
use queue_core::clock::Clock;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::backend::ShardedBackend;
use crate::resize::check_number;
use crate::topology::Topology;

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
        const NAME: QueueName = QueueName::from_static("shards");
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

    /// Connects them: reads which shards there are, or records it if this is the first program.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] without an account, for a number outside 1 to [`MAX_SHARDS`](crate::MAX_SHARDS), and if
    /// the shards are on other accounts, which the error names; those of the first account's storage.
    pub async fn connect(self) -> Result<ShardedBackend> {
        check_number(self.number)?;
        let Some(first) = self.accounts.first() else {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Open);
            return Err(error.with_detail("shards need an account").unsent());
        };
        let accounts = self.accounts.iter().map(|account| account.account());
        let (first, clock) = (Arc::clone(first), Arc::clone(&self.clock));
        let topology =
            Topology::open(first, self.name, accounts.collect(), self.number, clock).await?;
        let (accounts, clock) = (self.accounts, self.clock);
        Ok(ShardedBackend::new(
            accounts,
            topology,
            clock,
            self.patience,
        ))
    }
}
