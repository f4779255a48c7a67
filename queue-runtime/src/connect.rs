//! From a URL to a service.

use std::sync::Arc;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::{ClientId, InvalidId};

use crate::backend::memory::MemoryBackend;
use crate::clock::SystemClock;
use crate::engine::Engine;
use crate::keeper::Keeper;
use crate::remembered::Remembered;
use crate::service::{QueueService, Shared};
use crate::terms::TermsCache;

/// A service still to be configured; see [`QueueService::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ServiceBuilder {
    target: Target,
    client: Option<String>,
    clock: Option<Arc<dyn Clock>>,
}

#[derive(Debug)]
enum Target {
    Url(String),
    Backend(Arc<dyn Backend>),
}

/// Why a service could not be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// `QUEUE_URL` is not set, or not text.
    #[error(
        "read the environment variable `QUEUE_URL`; set it to `memory:`, `memory:NAME` or `sqlite:PATH`"
    )]
    Environment {
        /// What is wrong with it.
        source: std::env::VarError,
    },
    /// The URL is of no kind that this build knows.
    #[error("queue URL {url:?} is not understood: {problem}; allowed are {ALLOWED}")]
    Url {
        /// The URL's scheme; what stands behind it may be a secret.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The client id is not allowed.
    #[error("use the client id")]
    Client {
        /// What is wrong with it.
        source: InvalidId,
    },
    /// The storage engine could not be opened.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// The thread that keeps leases could not be started.
    #[error("start the thread that keeps leases")]
    Engine {
        /// What the system said.
        source: std::io::Error,
    },
}

#[cfg(feature = "sqlite")]
const ALLOWED: &str =
    "`memory:`, `memory:NAME`, `sqlite:PATH` and `sqlite:PATH?synchronous=normal`";
#[cfg(not(feature = "sqlite"))]
const ALLOWED: &str = "`memory:` and `memory:NAME` (this build is without the feature `sqlite`)";

impl ServiceBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            target: Target::Url(url.to_owned()),
            client: None,
            clock: None,
        }
    }

    pub(crate) fn over(backend: Arc<dyn Backend>) -> Self {
        Self {
            target: Target::Backend(backend),
            client: None,
            clock: None,
        }
    }

    /// Names the client that submissions come from. By default host name and process id.
    pub fn client(mut self, client: impl Into<String>) -> Self {
        self.client = Some(client.into());
        self
    }

    /// Replaces the system's clock, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Opens the storage and starts the thread that keeps leases.
    ///
    /// # Errors
    /// [`ConnectError`] names what is wrong with the URL or the storage.
    pub async fn connect(self) -> Result<QueueService, ConnectError> {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let client = match self.client {
            Some(client) => ClientId::new(client),
            None => ClientId::new(default_client()),
        };
        let client = client.map_err(|source| ConnectError::Client { source })?;
        let backend = match self.target {
            Target::Backend(backend) => backend,
            Target::Url(url) => open(url, Arc::clone(&clock)).await?,
        };
        let keeper = Keeper::new(Arc::clone(&backend), Arc::clone(&clock));
        let engine = Engine::start().map_err(|source| ConnectError::Engine { source })?;
        engine.spawn(keeper.clone().run());
        let shared = Shared {
            backend,
            clock,
            client,
            keeper,
            engine,
            terms: TermsCache::default(),
            remembered: Remembered::default(),
        };
        Ok(QueueService {
            shared: Arc::new(shared),
        })
    }
}

async fn open(url: String, clock: Arc<dyn Clock>) -> Result<Arc<dyn Backend>, ConnectError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(refused(&url, "it has no scheme"));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryBackend::new(clock))),
        "memory" => Ok(Arc::new(MemoryBackend::named(rest, clock))),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::open(&url, rest, clock).await,
        _ => Err(refused(&url, "its scheme is unknown")),
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use crate::backend::sqlite::{SqliteBackend, Synchronous};

    pub(super) async fn open(
        url: &str,
        rest: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectError> {
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() {
            return Err(refused(url, "it names no file"));
        }
        let synchronous = match query {
            "" | "synchronous=full" => Synchronous::Full,
            "synchronous=normal" => Synchronous::Normal,
            other => return Err(refused(url, &format!("the option `{other}` is unknown"))),
        };
        let builder = SqliteBackend::builder(path, clock).synchronous(synchronous);
        let backend = builder.open().await.map_err(ConnectError::Storage)?;
        Ok(Arc::new(backend))
    }
}

/// Shows no more of a URL than its scheme: anything behind it may be a secret, and so may what only
/// looks like a scheme.
fn refused(url: &str, problem: &str) -> ConnectError {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let shown = match scheme.filter(|scheme| scheme.chars().all(plain)) {
        Some(scheme) => format!("{scheme}:…"),
        None => "…".to_owned(),
    };
    ConnectError::Url {
        url: shown,
        problem: problem.to_owned(),
    }
}

fn default_client() -> String {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let host = if host.is_empty() {
        "localhost".to_owned()
    } else {
        host
    };
    format!("{host}/{}", std::process::id())
}
