//! What this program knows of the descriptor, and for how long it believes that.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::lock::Mutex as Turn;
use queue_core::backend::{Backend, BackendExt as _, Created};
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use crate::descriptor::Descriptor;
use crate::placement::shard_of;

/// The queue on the first account that keeps which shards there are, unless it is called otherwise.
pub(crate) const NAME: QueueName = QueueName::from_static("shards");

/// How old the descriptor may be before it is read again.
pub(crate) const FRESH: Duration = Duration::from_secs(60);

/// How old the descriptor may be for messages to be put by it: a shard that is no longer in use is given messages for
/// so long.
pub(crate) const TRUSTED: Duration = Duration::from_secs(120);

/// The pause after a read that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The descriptor, as this program has read it.
pub(crate) struct Topology {
    /// The first account, which has the descriptor.
    store: Arc<dyn Backend>,
    /// The queue whose metadata is the descriptor.
    queue: QueueName,
    /// The URIs of this program's accounts.
    accounts: Vec<String>,
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
    /// The turn to read the descriptor.
    turn: Turn<()>,
}

struct Known {
    descriptor: Arc<Descriptor>,
    /// When the descriptor was asked for, on the monotonic clock.
    asked_at: Duration,
    /// The last failed read since `asked_at`, and when.
    failure: Option<(Duration, Error)>,
}

impl Topology {
    /// Reads the descriptor, or writes the first one for this number of shards.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    pub(crate) async fn open(
        opened: &[Arc<dyn Backend>],
        queue: QueueName,
        number: u32,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let asked_at = clock.monotonic();
        let accounts: Vec<String> = opened.iter().map(|account| account.account()).collect();
        let store = Arc::clone(&opened[0]);
        let found: Vec<_> = opened.iter().map(Some).collect();
        let descriptor = match Self::check(&found, &queue).await? {
            None => {
                let mut first = Descriptor::first(accounts.clone(), number);
                if opened.iter().any(|account| account.results().is_none()) {
                    first.record_accounts = 1;
                }
                match store.create_queue(&queue, &first.to_metadata()?).await {
                    Ok(Created::New | Created::Existed) => first,
                    // Another program was first.
                    Err(error) if error.kind() == ErrorKind::QueueExists => {
                        read(&*store, &queue).await?
                    }
                    Err(error) => return Err(error),
                }
            }
            Some(found) => found,
        };
        descriptor.check(&accounts)?;
        Ok(Self {
            store,
            queue,
            accounts,
            clock,
            known: Mutex::new(Known {
                descriptor: Arc::new(descriptor),
                asked_at,
                failure: None,
            }),
            turn: Turn::new(()),
        })
    }

    /// Reads the descriptor, if there is one, and checks that the accounts have what it says, or have no shards without it:
    /// `None` for an account that does not exist yet. So nothing is created beside what is missing.
    ///
    /// # Errors
    /// The storage's errors; [`ErrorKind::InvalidInput`] if the accounts are others, or one is missing.
    pub(crate) async fn check(
        accounts: &[Option<&Arc<dyn Backend>>],
        queue: &QueueName,
    ) -> Result<Option<Descriptor>> {
        let refused = |detail| {
            let error = Error::new(ErrorKind::InvalidInput, Operation::Open);
            Err(error.with_detail(detail))
        };
        let first = accounts.first().copied().flatten();
        let mut queues = Vec::new();
        if let Some(first) = first {
            match read(&**first, queue).await {
                Ok(descriptor) => {
                    let missing = accounts.iter().position(Option::is_none);
                    if let Some(missing) = missing.filter(|at| *at < descriptor.accounts.len()) {
                        return refused(descriptor.is_missing(missing));
                    }
                    let own = accounts.iter().flatten().map(|account| account.account());
                    descriptor.check(&own.collect::<Vec<_>>())?;
                    return Ok(Some(descriptor));
                }
                Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
                Err(error) => return Err(error),
            }
            if *queue != NAME {
                // The account's queues may belong to shards of another name.
                return Ok(None);
            }
            queues = first.list_queues("").await?;
        }
        // A queue exists if and only if its first shard does.
        let has_first = |of: &QueueName| {
            let mut firsts = queues.iter().filter_map(shard_of);
            firsts.any(|(queue, shard)| shard == 0 && queue == *of)
        };
        for account in accounts.iter().flatten() {
            let names = account.list_queues("").await?;
            let stray = names.iter().find(|name| {
                shard_of(name).is_some_and(|(queue, shard)| shard > 0 && !has_first(&queue))
            });
            if let Some(stray) = stray {
                let account = account.account();
                return refused(format!(
                    "the first storage has no record of shards, and {account} has `{stray}`, a shard of a queue that was recorded: \
                     the first storage is missing, or was another one; name it, restore it, or delete that queue"
                ));
            }
        }
        Ok(None)
    }

    pub(crate) fn queue(&self) -> &QueueName {
        &self.queue
    }

    pub(crate) fn accounts(&self) -> &[String] {
        &self.accounts
    }

    /// Returns the known descriptor, however old.
    pub(crate) fn known(&self) -> Arc<Descriptor> {
        Arc::clone(&self.known.hold().descriptor)
    }

    /// Returns the descriptor by which messages may be put.
    ///
    /// # Errors
    /// Why the descriptor was not read for [`TRUSTED`].
    pub(crate) async fn for_puts(&self) -> Result<Arc<Descriptor>> {
        let age = self.age();
        if age < FRESH {
            return Ok(self.known());
        }
        let read = if age < TRUSTED {
            self.read_unless_read().await
        } else {
            self.read_in_turn(FRESH).await
        };
        match read {
            Err(_) if self.age() < TRUSTED => Ok(self.known()),
            Err(error) => {
                let detail = format!(
                    "which shards are in use was not read for {} s, so no message is put: {error}",
                    self.age().as_secs()
                );
                let refused = Error::new(error.kind(), Operation::Put).with_retry(error.retry());
                Err(refused.with_detail(detail).unsent())
            }
            Ok(()) => Ok(self.known()),
        }
    }

    /// Returns the newest descriptor that can be had without waiting for a storage that does not answer.
    pub(crate) async fn for_receives(&self) -> Arc<Descriptor> {
        if self.age() >= FRESH
            && let Err(error) = self.read_unless_read().await
        {
            tracing::debug!(%error, "failed to read which shards are in use; receiving from the known shards");
        }
        self.known()
    }

    /// Reads the descriptor that is in force now.
    pub(crate) async fn read_now(&self) -> Result<Arc<Descriptor>> {
        self.read_in_turn(Duration::ZERO).await?;
        Ok(self.known())
    }

    pub(crate) async fn write(&self, descriptor: Descriptor) -> Result<()> {
        let metadata = descriptor.to_metadata()?;
        let asked_at = self.clock.monotonic();
        self.store.set_metadata(&self.queue, &metadata).await?;
        self.learn(descriptor, asked_at);
        Ok(())
    }

    fn age(&self) -> Duration {
        let asked_at = self.known.hold().asked_at;
        self.clock.monotonic().saturating_sub(asked_at)
    }

    /// Reads the descriptor, unless somebody else does just now, or has failed to a moment ago.
    async fn read_unless_read(&self) -> Result<()> {
        match self.turn.try_lock() {
            Some(_turn) => self.read().await,
            None => Ok(()),
        }
    }

    /// Reads the descriptor, unless somebody else did while this call waited for its turn.
    async fn read_in_turn(&self, fresh: Duration) -> Result<()> {
        let _turn = self.turn.lock().await;
        if self.age() < fresh {
            return Ok(());
        }
        self.read().await
    }

    async fn read(&self) -> Result<()> {
        let asked_at = self.clock.monotonic();
        if let Some((failed_at, error)) = &self.known.hold().failure
            && asked_at.saturating_sub(*failed_at) < PAUSE
        {
            return Err(error.clone());
        }
        let read = read(&*self.store, &self.queue).await;
        let checked = read.and_then(|read| read.check(&self.accounts).map(|()| read));
        match checked {
            Ok(descriptor) => {
                self.learn(descriptor, asked_at);
                Ok(())
            }
            Err(error) => {
                let failed_at = self.clock.monotonic();
                self.known.hold().failure = Some((failed_at, error.clone()));
                Err(error)
            }
        }
    }

    fn learn(&self, mut descriptor: Descriptor, asked_at: Duration) {
        let mut known = self.known.hold();
        let records = known.descriptor.record_accounts;
        if descriptor.record_accounts != records {
            tracing::error!(
                found = descriptor.record_accounts,
                records,
                "another program has changed on how many accounts the records of the shards are; this program leaves them where they are"
            );
            descriptor.record_accounts = records;
        }
        if descriptor.epoch < known.descriptor.epoch {
            let (found, epoch) = (descriptor.epoch, known.descriptor.epoch);
            tracing::warn!(
                found,
                known = epoch,
                "ignored an older record of which shards are in use"
            );
        } else if *known.descriptor != descriptor {
            tracing::info!(
                epoch = descriptor.epoch,
                shards = descriptor.active,
                "which shards are in use has changed"
            );
            known.descriptor = Arc::new(descriptor);
        }
        (known.asked_at, known.failure) = (asked_at, None);
    }
}

async fn read(store: &dyn Backend, queue: &QueueName) -> Result<Descriptor> {
    Descriptor::from_metadata(&store.metadata(queue).await?)
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology")
            .field("known", &self.known())
            .finish_non_exhaustive()
    }
}
