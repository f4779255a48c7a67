//! URLs of a file, and the options that they have.

use std::sync::Arc;

use queue_core::backend::parse_max_delay;
use queue_core::internal::has_stray_ends;
use queue_core::{Clock, Error, ErrorKind, Operation, Result};

use crate::backend::SqliteBackend;
use crate::builder::SqliteBuilder;
use crate::file::connection::Synchronous;

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
    /// [`ErrorKind::InvalidInput`] if it names no file, the path begins or ends with white space or a quote or has a control
    /// character, or an option is unknown.
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

/// Whether the path is a name of SQLite's for a database in memory. It would be a file of that name here.
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
            assert_eq!(built.expect("a path").path(), std::path::Path::new(path));
        }
        for path in ["memory:", "a:memory:", ":memory", ":memory:.db"] {
            assert!(!is_in_memory(path), "{path}");
        }
    }
}
