//! Opening the backend that a URL names, and the error of connecting to queues.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use queue_clock::SystemClock;
use queue_core::backend::{Backend, parse_max_delay};
use queue_core::clock::{BoxFuture, Clock};
use queue_core::internal::has_stray_ends;
use queue_core::{Error, ErrorKind, Operation};

use super::connect_error::ConnectErrorKind;
use super::target::{Account, Target};
use crate::backend::MemoryBackend;
use crate::kernel::policy::StorageRetry;

/// Opens the storage of a URL whose scheme a program has registered.
type Open = dyn Fn(String, Arc<dyn Clock>) -> BoxFuture<'static, Result<Arc<dyn Backend>, Error>>
    + Send
    + Sync;

static SCHEMES: LazyLock<RwLock<HashMap<String, Arc<Open>>>> = LazyLock::new(RwLock::default);

/// Opens the storage that a URL names, without a service.
/// [`QueueService::builder`](crate::QueueService::builder) lists the URLs; [`register`] adds a scheme.
///
/// ```
/// use queue_runtime::backend::{self, Backend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = backend::connect("memory:shop").await?;
/// assert!(backend.list_queues("").await?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for an invalid URL, which the error does not repeat beyond its scheme;
/// [`ErrorKind::Unsupported`] if this program was built without the engine's feature; otherwise why the storage could not
/// be opened.
pub async fn connect(url: &str) -> Result<Arc<dyn Backend>, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let opened = async {
        let target = target(url)?;
        let retry = StorageRetry::default();
        target.open(&clock, &retry, &|backend, _| backend).await
    };
    opened.await.map_err(|kind| {
        let (kind, detail) = match kind {
            ConnectErrorKind::Storage(error) => return error,
            ConnectErrorKind::MissingFeature { url, feature } => (
                ErrorKind::Unsupported,
                format!("the queue URL {url:?} needs the feature `{feature}` of `storage-queues`"),
            ),
            ConnectErrorKind::Url { url, problem } => (
                ErrorKind::InvalidInput,
                format!("the queue URL {url:?} is not supported: {problem}"),
            ),
            kind => (ErrorKind::InvalidInput, kind.to_string()),
        };
        Error::new(kind, Operation::Open)
            .with_detail(detail)
            .unsent()
    })
}

/// Registers a scheme of URLs in this process: [`connect`] and services open what begins with `SCHEME:` by calling
/// `open` with the whole URL and the service's clock. A registered engine is used like an engine of this repository.
///
/// The registration replaces an earlier one of the scheme, and an engine of this repository for the scheme.
///
/// ```
/// use std::sync::Arc;
/// use queue_runtime::QueueService;
/// use queue_runtime::backend::{self, Backend, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// backend::register("folder", |url, clock| async move {
///     println!("opening {url}");
///     let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock));
///     Ok(backend)
/// });
/// let service = QueueService::connect("folder:/var/lib/shop").await?;
/// # Ok(())
/// # }
/// ```
pub fn register<F, O>(scheme: &'static str, open: F)
where
    F: Fn(String, Arc<dyn Clock>) -> O + Send + Sync + 'static,
    O: Future<Output = Result<Arc<dyn Backend>, Error>> + Send + 'static,
{
    let open: Arc<Open> = Arc::new(move |url, clock| Box::pin(open(url, clock)));
    let mut schemes = SCHEMES.write().unwrap_or_else(PoisonError::into_inner);
    schemes.insert(scheme.to_ascii_lowercase(), open);
}

fn registered(scheme: &str) -> Option<Arc<Open>> {
    let schemes = SCHEMES.read().unwrap_or_else(PoisonError::into_inner);
    schemes.get(scheme).map(Arc::clone)
}

/// Returns what a URL names: a storage, or several over which queues are spread.
pub(super) fn target(url: &str) -> Result<Target, ConnectErrorKind> {
    match url.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("sharded") => {
            let (accounts, sharding) = sharded::parse(url, rest)?;
            Ok(Target::Shards { accounts, sharding })
        }
        _ => Ok(Target::One(url.into())),
    }
}

pub(super) async fn open(
    url: String,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
    if is_connection_string(&url) {
        return azure::open(&url, clock).await;
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(refused(&url, "it has no scheme"));
    };
    // A scheme is the same in capitals.
    let lower = scheme.to_ascii_lowercase();
    if let Some(open) = registered(&lower) {
        return Ok(open(url, clock).await?);
    }
    match &*lower {
        "memory" => memory(&url, rest, clock).map(|backend| Arc::new(backend) as _),
        "sqlite" => sqlite::open(&url, clock).await,
        "postgres" | "postgresql" => postgres::open(&url, clock).await,
        scheme @ ("azure" | "https" | "http") => {
            azure::open(&format!("{scheme}:{rest}"), clock).await
        }
        _ => Err(refused(&url, "its scheme is unknown")),
    }
}

/// Whether opening this URL creates nothing: opening creates a file that does not exist.
pub(super) fn is_there(url: &str) -> bool {
    let is_sqlite = url.split_once(':').is_some_and(|(scheme, _)| {
        scheme.eq_ignore_ascii_case("sqlite") && registered("sqlite").is_none()
    });
    !is_sqlite || sqlite::is_there(url)
}

/// Opens `NAME?max_delay=30d`, of which both parts may be missing.
fn memory(url: &str, rest: &str, clock: Arc<dyn Clock>) -> Result<MemoryBackend, ConnectErrorKind> {
    let (name, options) = rest.split_once('?').unwrap_or((rest, ""));
    if has_stray_ends(name) {
        let problem =
            "its name begins or ends with white space or a quote, or has a control character";
        return Err(refused(url, problem));
    }
    let backend = match name {
        "" => MemoryBackend::new(clock),
        name => MemoryBackend::named(name, clock),
    };
    match (options, options.strip_prefix("max_delay=")) {
        ("", _) => Ok(backend),
        (_, Some(delay)) => {
            let delay = parse_max_delay(delay)?;
            Ok(backend.with_max_delay(delay))
        }
        _ => {
            let problem =
                "the only option of `memory:NAME` is `max_delay`, such as `?max_delay=30d`";
            Err(refused(url, problem))
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;
    use queue_sqlite::SqliteBuilder;

    /// An invalid URL is refused when it is opened.
    pub(super) fn is_there(url: &str) -> bool {
        let builder = SqliteBuilder::from_url(url, Arc::new(SystemClock::new()));
        builder.map_or(true, |builder| builder.path().exists())
    }

    pub(super) async fn open(
        url: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        let builder = SqliteBuilder::from_url(url, clock)?;
        Ok(Arc::new(builder.open().await?))
    }
}

#[cfg(not(feature = "sqlite"))]
mod sqlite {
    use super::*;

    pub(super) fn is_there(_url: &str) -> bool {
        true
    }

    pub(super) async fn open(
        url: &str,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        Err(ConnectErrorKind::MissingFeature {
            url: shown(url),
            feature: "sqlite",
        })
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use queue_postgres::PostgresBackend;

    pub(super) async fn open(
        url: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        Ok(Arc::new(PostgresBackend::open(url, clock).await?))
    }
}

#[cfg(not(feature = "postgres"))]
mod postgres {
    use super::*;

    pub(super) async fn open(
        url: &str,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        Err(ConnectErrorKind::MissingFeature {
            url: shown(url),
            feature: "postgres",
        })
    }
}

#[cfg(feature = "azure")]
mod azure {
    use super::*;
    use queue_azure::AzureBackend;

    pub(super) async fn open(
        url: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        let backend = AzureBackend::builder(url, clock).open().await;
        Ok(Arc::new(backend?))
    }
}

#[cfg(not(feature = "azure"))]
mod azure {
    use super::*;

    pub(super) async fn open(
        url: &str,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectErrorKind> {
        Err(ConnectErrorKind::MissingFeature {
            url: shown(url),
            feature: "azure",
        })
    }
}

mod sharded {
    use super::*;
    use queue_core::backend::Sharding;
    use queue_sharded::Shards;

    /// Reads the `NUMBER|URL|URL…` of a URL of shards.
    pub(super) fn parse(
        url: &str,
        rest: &str,
    ) -> Result<(Vec<Account>, Arc<dyn Sharding>), ConnectErrorKind> {
        let mut parts = rest.split('|').map(str::trim);
        let number = parts.next().and_then(|number| number.parse().ok());
        let number: u32 = number
            .ok_or_else(|| refused(url, "it has no number of shards, as in `sharded:4|URL|URL`"))?;
        let accounts: Vec<Account> = parts.map(Into::into).collect();
        if accounts.is_empty() {
            return Err(refused(
                url,
                "it names no account, as in `sharded:4|URL|URL`",
            ));
        }
        Ok((accounts, Arc::new(Shards::new(number))))
    }
}

/// Returns whether the text is a storage account's connection string, `NAME=VALUE;…`, not a URL.
fn is_connection_string(text: &str) -> bool {
    let name = text.trim_start_matches([';', ' ']);
    let end = name.find(|c: char| !c.is_ascii_alphanumeric());
    end.is_some_and(|end| end > 0 && name[end..].starts_with('='))
}

/// The error of a variable that is set to nothing, as by a file of the environment without a value.
pub(super) fn empty() -> ConnectErrorKind {
    refused("", "the environment variable `QUEUE_URL` is empty")
}

fn refused(url: &str, problem: &str) -> ConnectErrorKind {
    ConnectErrorKind::Url {
        url: shown(url),
        problem: problem.to_owned(),
    }
}

/// Returns the URL's scheme for an error, because the rest may contain a secret. Text before a colon that is not a
/// plausible scheme is hidden too.
fn shown(url: &str) -> String {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    let plain = |c: char| c.is_ascii_alphabetic() || c.is_ascii_digit() || "+-.".contains(c);
    let plain = |scheme: &&str| scheme.len() <= 16 && scheme.chars().all(plain);
    match scheme.filter(plain) {
        Some(scheme) => format!("{scheme}:…"),
        None => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_database_of_the_application_is_adopted_when_the_url_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shop.db");
        let own = rusqlite::Connection::open(&path).expect("opened");
        own.execute_batch("CREATE TABLE messages (text TEXT)")
            .expect("created");
        for (query, accepted) in [
            ("", false),
            ("?synchronous=full", false),
            ("?adopt=true", false),
            ("?synchronous=normal&adopt", true),
            ("?adopt", true),
            ("", true),
        ] {
            let url = format!("sqlite:{}{query}", path.display());
            let opened = open(url, Arc::new(SystemClock::new())).await;
            assert_eq!(opened.is_ok(), accepted, "{query}: {opened:?}");
        }
    }

    #[tokio::test]
    async fn a_registered_scheme_is_opened_with_its_whole_url() {
        register("registered", |url, clock| async move {
            let name = url.strip_prefix("registered://").map(str::to_owned);
            let name = name.ok_or(Error::new(ErrorKind::InvalidInput, Operation::Open))?;
            let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::named(&name, clock));
            Ok(backend)
        });
        let (queue, metadata) = (&"orders".parse().expect("valid"), &Default::default());
        let backend = connect("registered://shared").await.expect("opened");
        backend
            .create_queue(queue, metadata)
            .await
            .expect("created");
        let same = connect("memory:shared").await.expect("opened");
        let listed = same.list_queues("").await.expect("listed");
        assert_eq!(listed, std::slice::from_ref(queue));
        let refused = connect("registered:").await.expect_err("it has no name");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }

    #[tokio::test]
    async fn a_url_that_cannot_be_opened_is_named_by_its_scheme_only() {
        let refused = connect("amqp://guest:s3cret@host")
            .await
            .expect_err("unknown");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let text = refused.to_string();
        assert!(text.contains("amqp:") && !text.contains("s3cret"), "{text}");
    }

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
