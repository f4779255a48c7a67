//! How a file is opened: by settings, or by a URL with options.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{
    Attachments, Browsing, Capabilities, ConditionalPuts, Groups, Places, Tracking, parse_max_delay,
};
use queue_core::internal::has_stray_ends;
use queue_core::{Clock, Error, ErrorKind, Operation, Result};

use crate::backend::SqliteBackend;
use crate::file::connection::{Settings, Synchronous};
use crate::threads;

/// Configures and opens a [`SqliteBackend`].
///
/// ```
/// # use std::sync::Arc;
/// use std::time::Duration;
/// use queue_clock::SystemClock;
/// use queue_core::backend::Backend;
/// use queue_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("queue.db");
/// let builder = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
/// let builder = builder.busy_timeout(Duration::from_secs(2)).max_body(8 * 1024);
/// let backend = builder.open().await?;
/// assert_eq!(backend.capabilities().max_body, 8 * 1024);
/// # drop(backend);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct SqliteBuilder {
    settings: Settings,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
}

impl SqliteBackend {
    /// Opens a file with the default settings.
    ///
    /// # Errors
    /// The errors of [`SqliteBuilder::open`].
    pub async fn open(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::builder(path, clock).open().await
    }

    /// Returns a builder for a backend on this file.
    pub fn builder(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> SqliteBuilder {
        let mut capabilities = Capabilities::local();
        capabilities.places = Places::Kept;
        capabilities.browsing = Browsing::Supported;
        // Processes of one machine wake each other, so polling is for those that cannot.
        capabilities.idle_cap = Duration::from_secs(1);
        capabilities.conditional_puts = ConditionalPuts::Supported;
        capabilities.attachments = Attachments::Supported;
        capabilities.groups = Groups::Supported;
        capabilities.tracking = Tracking::Supported;
        SqliteBuilder {
            settings: Settings::new(path),
            clock,
            capabilities,
        }
    }
}

impl SqliteBuilder {
    /// The path that the builder was created with, which need not exist: for [`FileCheck`](crate::FileCheck) and
    /// [`salvage`](crate::salvage) of the file that a URL names.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.settings.path
    }

    /// Sets when a commit counts as durable; [`Synchronous::Full`] by default.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.settings.synchronous = synchronous;
        self
    }

    /// Sets how long an operation waits while other processes write; 5 s by default. After the timeout, the operation
    /// fails with [`ErrorKind::Timeout`](queue_core::ErrorKind::Timeout) and has had no effect. Keep the busy timeout
    /// below the visibility timeout.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.settings.busy_timeout = timeout;
        self
    }

    /// Sets how many bytes puts leave free on the file system; 32 MiB by default.
    ///
    /// While less than this minimum is free, messages can be received and settled, but a put fails with
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage), and can be retried. An operation that removes a message
    /// and puts several, such as a completion with follow-ups, fails while less than half of the minimum is free; an
    /// operation that puts as many messages as it removes never does. Zero keeps no space free: once the disk is full,
    /// messages may be neither received nor settled before there is space again. On systems other than Unix, the
    /// minimum has no effect.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// use queue_clock::SystemClock;
    /// use queue_sqlite::SqliteBackend;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("queue.db");
    /// let builder = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
    /// let backend = builder.min_free_space(8 * 1024 * 1024).open().await?;
    /// # drop(backend);
    /// # Ok(())
    /// # }
    /// ```
    pub fn min_free_space(mut self, bytes: u64) -> Self {
        self.settings.min_free_space = bytes;
        self
    }

    /// Adopts the database of another application, usually this program's own: the queues are kept in it, beside its
    /// tables. Without `adopt`, the database of another application is refused.
    ///
    /// Everything that is created has a name that begins with `queue_`; the application's tables, `user_version` and
    /// `application_id` stay as they are. The file is switched to WAL mode. Once the file was adopted, it can be opened
    /// without `adopt`. For a missing or empty file, `adopt` makes no difference.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// use queue_clock::SystemClock;
    /// use queue_sqlite::SqliteBackend;
    /// use queue_sqlite::rusqlite::Connection;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("shop.db");
    /// Connection::open(&path)?.execute_batch("CREATE TABLE messages (text TEXT)")?;
    /// let builder = SqliteBackend::builder(&path, Arc::new(SystemClock::new()));
    /// let backend = builder.adopt().open().await?;
    /// # drop(backend);
    /// # Ok(())
    /// # }
    /// ```
    pub fn adopt(mut self) -> Self {
        self.settings.adopt = true;
        self
    }

    /// Sets the largest body, in bytes; 48 KiB by default, as on Azure.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.capabilities.max_body = bytes;
        self
    }

    /// Sets the shortest visibility timeout; 1 second by default, as on Azure.
    pub fn min_visibility(mut self, timeout: Duration) -> Self {
        self.capabilities.min_visibility = timeout;
        self
    }

    /// Sets the longest delay of a message; 7 days by default, as on Azure, and at most ten years. Messages that are
    /// inserted into `queue_outbox` are delayed by up to 7 days, whatever the maximum is.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.capabilities.max_delay = delay;
        self
    }

    /// Sets the largest metadata of a queue, in bytes of names and values; 8 KiB by default, as on Azure.
    pub fn max_metadata(mut self, bytes: usize) -> Self {
        self.capabilities.max_metadata = bytes;
        self
    }

    /// Opens the file. A file that does not exist is created, and a file with an older schema is migrated.
    ///
    /// # Errors
    /// [`ErrorKind::Storage`](queue_core::ErrorKind::Storage) if the directory is missing, the
    /// file cannot be opened, or it has a second path, for which SQLite would keep another log: a hard link, or a mount
    /// of the file without its folder; [`ErrorKind::Denied`](queue_core::ErrorKind::Denied) if it is read-only;
    /// [`ErrorKind::Corrupt`](queue_core::ErrorKind::Corrupt) if it is not a database;
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) if it belongs to another
    /// application and is not to be [adopted](Self::adopt), or was written by a newer version or one from before the
    /// first release, in which cases it is not changed, if it is on a network file system (recognised on Linux and Android), or if the SQLite library is older than 3.51.3. The error
    /// names the path.
    ///
    /// # Cancel safety
    /// Dropping the future may leave a new file without queues.
    pub async fn open(self) -> Result<SqliteBackend> {
        let Self {
            settings,
            clock,
            capabilities,
        } = self;
        let given = settings.path.clone();
        let threads = threads::start(settings, clock).await;
        let threads =
            threads.map_err(|failure| failure.into_error(Operation::Open, None, &given))?;
        Ok(SqliteBackend::new(threads, capabilities))
    }
}

impl SqliteBuilder {
    /// Returns the builder of a URL: `sqlite:PATH`, with options after a `?`, separated by `&`.
    ///
    /// | option | effect |
    /// |---|---|
    /// | `adopt` | [`adopt`](Self::adopt) |
    /// | `max_delay=30d` | [`max_delay`](Self::max_delay) |
    /// | `synchronous=full`, `synchronous=normal` | [`synchronous`](Self::synchronous) |
    ///
    /// ```
    /// use std::sync::Arc;
    /// use queue_clock::SystemClock;
    /// use queue_sqlite::SqliteBuilder;
    ///
    /// let clock = Arc::new(SystemClock::new());
    /// let builder = SqliteBuilder::from_url("sqlite:shop.db?adopt&synchronous=normal", clock)?;
    /// # Ok::<(), queue_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the URL names no file, the path begins or ends with white space or a quote or has
    /// a control character, or an option is unknown.
    pub fn from_url(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let refused = |problem: String| {
            Error::new(ErrorKind::InvalidInput, Operation::Open)
                .with_detail(problem)
                .unsent()
        };
        let (scheme, rest) = url.split_once(':').unwrap_or_default();
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() || !scheme.eq_ignore_ascii_case("sqlite") {
            return Err(refused(
                "the URL of a SQLite file is `sqlite:PATH`".to_owned(),
            ));
        }
        if has_stray_ends(path) {
            return Err(refused(format!(
                "the path {path:?} begins or ends with white space or a quote, or has a control character, as a mistake in a \
                 script or an environment file leaves it; `SqliteBackend::builder` takes any path"
            )));
        }
        if is_in_memory(path) {
            return Err(refused(
                "the connections of a service cannot share SQLite's `:memory:`; use `memory:`"
                    .to_owned(),
            ));
        }
        let mut builder = SqliteBackend::builder(path, clock);
        for option in query.split('&') {
            if let Some(delay) = option.strip_prefix("max_delay=") {
                builder = builder.max_delay(parse_max_delay(delay)?);
                continue;
            }
            builder = match option {
                "" => builder,
                "adopt" => builder.adopt(),
                "synchronous=full" => builder.synchronous(Synchronous::Full),
                "synchronous=normal" => builder.synchronous(Synchronous::Normal),
                other => {
                    return Err(refused(format!(
                        "the option {other:?} is unknown; the options of `sqlite:PATH` are `adopt`, `max_delay=30d`, \
                         `synchronous=full` and `synchronous=normal`"
                    )));
                }
            };
        }
        Ok(builder)
    }
}

/// Whether the path is a name of SQLite's for a database in memory, which would be a file of that name here.
fn is_in_memory(path: &str) -> bool {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    name.trim_start_matches("file:") == ":memory:"
}

#[cfg(test)]
mod tests {
    use queue_core::ManualClock;

    use super::*;

    #[test]
    fn a_url_without_a_file_or_with_an_unknown_option_is_refused() {
        let refused = |url: &str| {
            let built = SqliteBuilder::from_url(url, Arc::new(ManualClock::new()));
            let error = built.expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(error.is_unsent(), "{url}");
            error.to_string()
        };
        for url in [
            "sqlite:",
            "sqlite://",
            "sqlite:?adopt",
            "shop.db",
            "memory:shop",
        ] {
            assert!(refused(url).contains("`sqlite:PATH`"), "{url}");
        }
        let text = refused("sqlite:queue.db?adopt&cache=shared");
        assert!(
            text.contains("\"cache=shared\"") && text.contains("`adopt`"),
            "{text}"
        );
        for value in ["", "30", "0s", "6d", "-1d", "3651d", "soon"] {
            let text = refused(&format!("sqlite:queue.db?max_delay={value}"));
            assert!(text.contains("allowed is `7d` to `3650d`"), "{text}");
        }
        for url in [
            "sqlite::memory:",
            "sqlite::memory:?cache=shared",
            "sqlite://:memory:",
            "sqlite:file::memory:",
            "sqlite:data/:memory:",
        ] {
            assert!(refused(url).contains("use `memory:`"), "{url}");
        }
        for path in [
            "queue.db\r",
            "queue.db\n",
            " queue.db",
            "queue.db ",
            "queue.db\t?adopt",
            "\"queue.db\"",
            "queue.db\"",
            "'queue.db'",
            "`queue.db`",
            "a\u{0}b.db",
            "data\r/queue.db",
            "queue.db\u{a0}",
            "\u{feff}queue.db",
            "\u{201c}queue.db\u{201d}",
            "//queue.db\r",
        ] {
            let text = refused(&format!("sqlite:{path}"));
            assert!(
                text.contains("begins or ends with white space or a quote"),
                "{text}"
            );
            assert!(!text.contains(char::is_control), "{text:?}");
        }
        for path in ["/var/my data/queue.db", "it's \"mine\".db", "queue.db"] {
            let built =
                SqliteBuilder::from_url(&format!("sqlite:{path}"), Arc::new(ManualClock::new()));
            assert_eq!(built.expect("a path").path(), Path::new(path));
        }
        for path in ["memory:", "a:memory:", ":memory", ":memory:.db"] {
            assert!(!is_in_memory(path), "{path}");
        }
    }
}
