//! What a service is on: one storage, or several over which its queues are spread.

use std::fmt;
use std::sync::Arc;

use queue_core::backend::{Backend, Sharding};
use queue_core::clock::Clock;

use super::connect::{is_there, open};
use super::connect_error::ConnectErrorKind;
use crate::kernel::policy::StorageRetry;
use crate::kernel::repeat::Repeats;

/// A storage of [shards](crate::QueueService::sharded): a URL, or a backend.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::clock::SystemClock;
/// use queue_runtime::backend::{Backend, MemoryBackend};
/// use queue_runtime::service::Account;
///
/// let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(Arc::new(SystemClock::new())));
/// let accounts: [Account; 2] = ["sqlite:one.db".into(), backend.into()];
/// ```
#[derive(Clone)]
pub struct Account(Kind);

#[derive(Clone)]
enum Kind {
    Url(String),
    Backend(Arc<dyn Backend>),
}

/// The storage that a service was told to use.
pub(super) enum Target {
    One(Account),
    Shards {
        accounts: Vec<Account>,
        sharding: Arc<dyn Sharding>,
    },
}

/// Puts a layer over a storage, which may have shards of queues.
pub(super) type Layer<'a> =
    dyn Fn(Arc<dyn Backend>, Option<&Arc<dyn Sharding>>) -> Arc<dyn Backend> + Send + Sync + 'a;

impl Target {
    /// Opens each storage, and puts the layer over it.
    pub(super) async fn open(
        self,
        clock: &Arc<dyn Clock>,
        retry: &StorageRetry,
        layer: &Layer<'_>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        let (accounts, sharding) = match self {
            Self::One(account) => return Ok(layer(account.open(clock).await?, None)),
            Self::Shards { accounts, sharding } => (accounts, sharding),
        };
        let mut repeats = Repeats::by(retry, &**clock);
        // Opens existing storages first, so that a program that is refused creates nothing.
        let mut found: Vec<Option<Arc<dyn Backend>>> = vec![None; accounts.len()];
        loop {
            for (account, found) in accounts.iter().zip(&mut found) {
                if found.is_none() && account.is_there() {
                    *found = Some(layer(account.open(clock).await?, Some(&sharding)));
                }
            }
            let are_alike = found.iter().all(Option::is_some) || found.iter().all(Option::is_none);
            if are_alike {
                break;
            }
            let Err(error) = sharding.check(&found).await else {
                break;
            };
            let mut missing = accounts.iter().zip(&found).filter(|(_, one)| one.is_none());
            // If one is there, another program has created it meanwhile.
            if !missing.any(|(account, _)| account.is_there()) {
                repeats.pause(error).await?;
            }
        }
        let mut opened = Vec::with_capacity(accounts.len());
        for (account, found) in accounts.into_iter().zip(found) {
            opened.push(match found {
                Some(found) => found,
                None => layer(account.open(clock).await?, Some(&sharding)),
            });
        }
        loop {
            match sharding.connect(opened.clone(), Arc::clone(clock)).await {
                Ok(sharded) => return Ok(sharded),
                Err(error) => repeats.pause(error).await?,
            }
        }
    }
}

impl Account {
    /// Whether opening the account creates nothing.
    fn is_there(&self) -> bool {
        match &self.0 {
            Kind::Url(url) => is_there(url),
            Kind::Backend(_) => true,
        }
    }

    async fn open(&self, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        match &self.0 {
            Kind::Url(url) => open(url.clone(), Arc::clone(clock)).await,
            Kind::Backend(backend) => Ok(Arc::clone(backend)),
        }
    }
}

impl From<&str> for Account {
    fn from(url: &str) -> Self {
        Self(Kind::Url(url.to_owned()))
    }
}

impl From<String> for Account {
    fn from(url: String) -> Self {
        Self(Kind::Url(url))
    }
}

impl From<Arc<dyn Backend>> for Account {
    fn from(backend: Arc<dyn Backend>) -> Self {
        Self(Kind::Backend(backend))
    }
}

/// Hides the URL, which may contain a secret.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Url(_) => f.write_str("Url(…)"),
            Kind::Backend(backend) => f.debug_tuple("Backend").field(backend).finish(),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(account) => account.fmt(f),
            Self::Shards { accounts, sharding } => {
                let mut shown = f.debug_struct("Shards");
                shown
                    .field("accounts", accounts)
                    .field("sharding", sharding)
                    .finish()
            }
        }
    }
}
