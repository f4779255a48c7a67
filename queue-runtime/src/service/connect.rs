//! Opening the backend that a URL names.

use std::sync::Arc;

use queue_core::backend::Backend;
use queue_core::clock::Clock;

use super::error::ConnectError;
use crate::backend::memory::MemoryBackend;

pub(super) async fn open(
    url: String,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Backend>, ConnectError> {
    if is_connection_string(&url) {
        return azure::open(&url, clock).await;
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(refused(&url, "it has no scheme"));
    };
    match &*scheme.to_ascii_lowercase() {
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryBackend::new(clock))),
        "memory" => Ok(Arc::new(MemoryBackend::named(rest, clock))),
        "sqlite" => sqlite::open(&url, rest, clock).await,
        scheme @ ("azure" | "https" | "http") => {
            azure::open(&format!("{scheme}:{rest}"), clock).await
        }
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
        if is_in_memory(path) {
            let problem =
                "the connections of a service cannot share SQLite's `:memory:`; use `memory:`";
            return Err(refused(url, problem));
        }
        let mut builder = SqliteBackend::builder(path, clock);
        for option in query.split('&') {
            builder = match option {
                "" => builder,
                "adopt" => builder.adopt(),
                "synchronous=full" => builder.synchronous(Synchronous::Full),
                "synchronous=normal" => builder.synchronous(Synchronous::Normal),
                other => return Err(refused(url, &format!("the option `{other}` is unknown"))),
            };
        }
        let backend = builder.open().await.map_err(ConnectError::Storage)?;
        Ok(Arc::new(backend))
    }
}

#[cfg(not(feature = "sqlite"))]
mod sqlite {
    use super::*;

    pub(super) async fn open(
        url: &str,
        _rest: &str,
        _clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Backend>, ConnectError> {
        Err(ConnectError::MissingFeature {
            url: shown(url),
            feature: "sqlite",
        })
    }
}

/// Whether the path is a name of SQLite's for a database in memory. It would be a file of that name here.
#[cfg(feature = "sqlite")]
fn is_in_memory(path: &str) -> bool {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    name.trim_start_matches("file:") == ":memory:"
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
        Err(ConnectError::MissingFeature {
            url: shown(url),
            feature: "azure",
        })
    }
}

/// Returns whether the text is a storage account's connection string, `NAME=VALUE;…`, not a URL.
fn is_connection_string(text: &str) -> bool {
    let name = text.trim_start_matches([';', ' ']);
    let end = name.find(|c: char| !c.is_ascii_alphanumeric());
    end.is_some_and(|end| end > 0 && name[end..].starts_with('='))
}

fn refused(url: &str, problem: &str) -> ConnectError {
    ConnectError::Url {
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
    async fn a_database_of_sqlites_in_memory_is_refused() {
        for url in [
            "sqlite::memory:",
            "sqlite::memory:?cache=shared",
            "sqlite://:memory:",
            "sqlite:file::memory:",
            "sqlite:data/:memory:",
        ] {
            let clock = Arc::new(crate::SystemClock::new());
            let error = open(url.to_owned(), clock).await.expect_err(url);
            let text = error.to_string();
            assert!(text.contains("use `memory:`"), "{text}");
        }
        for path in ["memory:", "a:memory:", ":memory", ":memory:.db"] {
            assert!(!is_in_memory(path), "{path}");
        }
    }

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
            let opened = open(url, Arc::new(crate::SystemClock::new())).await;
            assert_eq!(opened.is_ok(), accepted, "{query}: {opened:?}");
        }
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
