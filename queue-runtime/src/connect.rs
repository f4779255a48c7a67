//! From a URL to a service.

use std::fmt;
use std::sync::Arc;

use queue_core::backend::Backend;
use queue_core::clock::Clock;
use queue_core::{ClientId, InvalidId};

use crate::backend::memory::MemoryBackend;
use crate::clock::SystemClock;
use crate::encoding::MessageEncoding;
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
    encoding: MessageEncoding,
    on_current_runtime: bool,
}

enum Target {
    Url(String),
    Backend(Arc<dyn Backend>),
}

/// A URL may hold a secret.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => f.write_str("Url(…)"),
            Self::Backend(backend) => f.debug_tuple("Backend").field(backend).finish(),
        }
    }
}

/// Why a service could not be connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// `QUEUE_URL` is not set, or not text.
    #[error("read the environment variable `QUEUE_URL`; set it to {}", allowed())]
    Environment {
        /// What is wrong with it.
        source: std::env::VarError,
    },
    /// The URL is of no kind that this build knows.
    #[error(
        "queue URL {url:?} is not understood: {problem}; allowed are {}",
        allowed()
    )]
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
    /// The thread that renews leases could not be started, or there is no Tokio runtime to do it on.
    #[error("start the renewal of leases")]
    Engine {
        /// The cause.
        source: std::io::Error,
    },
}

impl ServiceBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            target: Target::Url(url.to_owned()),
            client: None,
            clock: None,
            encoding: MessageEncoding::default(),
            on_current_runtime: false,
        }
    }

    pub(crate) fn over(backend: Arc<dyn Backend>) -> Self {
        Self {
            target: Target::Backend(backend),
            client: None,
            clock: None,
            encoding: MessageEncoding::default(),
            on_current_runtime: false,
        }
    }

    /// Names the client that submissions come from. By default host name and process id.
    pub fn client(mut self, client: impl Into<String>) -> Self {
        self.client = Some(client.into());
        self
    }

    /// Chooses how bodies are written where the storage carries only text. By default Base64.
    pub fn message_encoding(mut self, encoding: MessageEncoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// Replaces the system's clock, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs renewals as tasks on the current Tokio runtime instead of on a thread of the service's own.
    ///
    /// For tests that pause Tokio's time, which reaches no other runtime. A runtime that is blocked loses
    /// leases.
    pub fn on_current_runtime(mut self) -> Self {
        self.on_current_runtime = true;
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
        let engine = if self.on_current_runtime {
            Engine::on_current_runtime().map_err(std::io::Error::other)
        } else {
            Engine::start()
        };
        let engine = engine.map_err(|source| ConnectError::Engine { source })?;
        engine.spawn(keeper.clone().run());
        let shared = Shared {
            backend,
            clock,
            client,
            encoding: self.encoding,
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
    if is_connection_string(&url) {
        return azure::open(&url, clock).await;
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(refused(&url, "it has no scheme"));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryBackend::new(clock))),
        "memory" => Ok(Arc::new(MemoryBackend::named(rest, clock))),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite::open(&url, rest, clock).await,
        "azure" | "https" | "http" => azure::open(&url, clock).await,
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

#[cfg(feature = "azure")]
mod azure {
    use super::*;
    use crate::backend::azure::AzureBackend;

    pub(super) async fn open(
        url: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectError> {
        let backend = AzureBackend::builder(url, clock).open().await;
        Ok(Arc::new(backend.map_err(ConnectError::Storage)?))
    }
}

#[cfg(not(feature = "azure"))]
mod azure {
    use super::*;

    pub(super) async fn open(
        url: &str,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectError> {
        Err(refused(url, "this build is without the feature `azure`"))
    }
}

/// Whether this is a storage account's connection string, `NAME=VALUE;…`, rather than a URL.
fn is_connection_string(text: &str) -> bool {
    let name = text.trim_start_matches([';', ' ']);
    let end = name.find(|c: char| !c.is_ascii_alphanumeric());
    end.is_some_and(|end| end > 0 && name[end..].starts_with('='))
}

/// The URLs that this build knows.
fn allowed() -> String {
    let mut allowed = vec!["`memory:`", "`memory:NAME`"];
    if cfg!(feature = "sqlite") {
        allowed.extend(["`sqlite:PATH`", "`sqlite:PATH?synchronous=normal`"]);
    }
    if cfg!(feature = "azure") {
        allowed.extend([
            "`azure://ACCOUNT`",
            "`https://…?sig=…`",
            "an Azure connection string",
        ]);
    }
    let last = allowed.pop().unwrap_or_default();
    let without = match (cfg!(feature = "sqlite"), cfg!(feature = "azure")) {
        (true, true) => "",
        (true, false) => " (this build is without the feature `azure`)",
        (false, true) => " (this build is without the feature `sqlite`)",
        (false, false) => " (this build is without the features `sqlite` and `azure`)",
    };
    format!("{} and {last}{without}", allowed.join(", "))
}

/// Shows no more of a URL than its scheme: anything behind it may be a secret, and so may what only
/// looks like a scheme.
fn refused(url: &str, problem: &str) -> ConnectError {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let plain = |scheme: &&str| scheme.len() <= 16 && scheme.chars().all(plain);
    let shown = match scheme.filter(plain) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_no_connection_strings() {
        for text in [
            "UseDevelopmentStorage=true",
            ";AccountName=a;AccountKey=b",
            "QueueEndpoint=http://127.0.0.1:1/a;SharedAccessSignature=sv=1&sig=x",
        ] {
            assert!(is_connection_string(text), "{text}");
        }
        for text in [
            "memory:",
            "sqlite:a=b",
            "azure://acct",
            "https://a.queue.core.windows.net/?sv=1&sig=x",
            "",
            "=",
        ] {
            assert!(!is_connection_string(text), "{text}");
        }
    }
}
