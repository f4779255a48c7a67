//! What a service is on: one storage, or several over which its queues are spread.

use std::fmt;
use std::sync::Arc;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_sharded::{ShardedBackend, Shards, shard_of};

use super::connect::{ConnectErrorKind, is_there, open};
use crate::extensions::meter::{Metered, Whole};
use crate::extensions::storage_limit::StorageLimit;
use crate::kernel::observe::Meter;
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
    Shards { accounts: Vec<Account>, number: u32 },
}

/// An opened storage, whose requests are limited and counted.
pub(super) struct Opened {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) shards: Option<Arc<ShardedBackend>>,
}

/// What a URL of shards begins with.
const SCHEME: &str = "sharded:";

/// Between the URLs of shards.
const SEPARATOR: char = '|';

const SHARDS: Whole = |queue| shard_of(queue).map(|(whole, _)| whole);

impl Target {
    pub(super) fn url(url: &str) -> Self {
        Self::One(url.into())
    }

    pub(super) async fn open(
        self,
        clock: &Arc<dyn Clock>,
        meter: &Arc<Meter>,
        limit: StorageLimit,
        retry: &StorageRetry,
    ) -> Result<Opened, ConnectErrorKind> {
        let (accounts, number) = match self {
            Self::One(Account(Kind::Url(url))) if url.starts_with(SCHEME) => parse(&url)?,
            Self::One(account) => {
                let backend = account.open(clock, meter, limit, None).await?;
                let shards = None;
                return Ok(Opened { backend, shards });
            }
            Self::Shards { accounts, number } => (accounts, number),
        };
        let mut repeats = Repeats::by(retry, &**clock);
        // Opens existing storages first, so that a program that is refused creates nothing.
        let mut found: Vec<Option<Arc<dyn Backend>>> = vec![None; accounts.len()];
        loop {
            for (account, found) in accounts.iter().zip(&mut found) {
                if found.is_none() && account.is_there() {
                    *found = Some(account.open(clock, meter, limit, Some(SHARDS)).await?);
                }
            }
            let are_alike = found.iter().all(Option::is_some) || found.iter().all(Option::is_none);
            if are_alike {
                break;
            }
            let Err(error) = Shards::check(&found).await else {
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
                None => account.open(clock, meter, limit, Some(SHARDS)).await?,
            });
        }
        let shards = loop {
            let shards = Shards::new(opened.clone(), number, Arc::clone(clock));
            match shards.connect().await {
                Ok(shards) => break Arc::new(shards),
                Err(error) => repeats.pause(error).await?,
            }
        };
        Ok(Opened {
            backend: Arc::<ShardedBackend>::clone(&shards),
            shards: Some(shards),
        })
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

    async fn open(
        &self,
        clock: &Arc<dyn Clock>,
        meter: &Arc<Meter>,
        limit: StorageLimit,
        whole: Option<Whole>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        let backend = match &self.0 {
            Kind::Url(url) => open(url.clone(), Arc::clone(clock)).await?,
            Kind::Backend(backend) => Arc::clone(backend),
        };
        let (limiter, meter) = (limit.limiter(clock), Arc::clone(meter));
        Ok(Arc::new(Metered::new(backend, limiter, meter, whole)))
    }
}

/// Returns the accounts and the number of shards of `sharded:NUMBER|URL|URL…`.
fn parse(url: &str) -> Result<(Vec<Account>, u32), ConnectErrorKind> {
    let refused = |problem: &str| ConnectErrorKind::Url {
        url: format!("{SCHEME}…"),
        problem: problem.to_owned(),
    };
    let mut parts = url[SCHEME.len()..].split(SEPARATOR);
    let number = parts.next().and_then(|number| number.trim().parse().ok());
    let number =
        number.ok_or_else(|| refused("it has no number of shards, as in `sharded:4|URL|URL`"))?;
    let accounts: Vec<Account> = parts.map(|url| url.trim().into()).collect();
    if accounts.is_empty() {
        return Err(refused("it names no account, as in `sharded:4|URL|URL`"));
    }
    Ok((accounts, number))
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
            Self::Shards { accounts, number } => {
                let mut shown = f.debug_struct("Shards");
                shown
                    .field("accounts", accounts)
                    .field("number", number)
                    .finish()
            }
        }
    }
}
