//! Opening the storage that a URL names.

use std::path::Path;
use std::sync::Arc;

use queue_runtime::QueueService;
use queue_runtime::backend::SqliteBuilder;
use queue_runtime::clock::SystemClock;
use queue_runtime::internal::file_access;
use queue_runtime::payloads::ObjectPayloads;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};
use crate::output::note;

/// What happens if the URL names a SQLite file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The file is created.
    Create,
    /// An error: a path with a mistake in it must not look like a storage without queues.
    Report,
}

pub(crate) async fn open(general: &General, missing: Missing) -> Result<QueueService> {
    let url = url(general)?;
    let file = sqlite(first(url))?;
    if let Some(file) = file.filter(|_| missing == Missing::Report) {
        check_exists(file.path())?;
    }
    if url.starts_with("memory:") {
        note("`memory:` is empty in each new process, and is lost when the process ends");
    }
    let mut builder = QueueService::builder(url).client_id(client());
    if let Some(container) = &general.payload_container {
        builder = builder.payload_container(container);
    }
    if let Some(folder) = &general.payload_folder {
        check_exists(folder)?;
        let store = ObjectPayloads::in_folder(folder).map_err(|error| {
            let (shown, access) = (folder.display(), file_access(folder, &error));
            Failure::new(
                Exit::Failed,
                format!("failed to open `{shown}`: {error}{access}"),
            )
        })?;
        builder = builder.payloads(Arc::new(store));
    }
    Ok(builder.connect().await?)
}

/// Whether the URL names a service, which asks for credentials, and not files alone.
pub(crate) fn is_service(url: &str) -> bool {
    let is_local = |url: &str| {
        let schemes = ["sqlite", "memory", "sharded"];
        let scheme = url.split(':').next().unwrap_or_default();
        schemes
            .iter()
            .any(|local| scheme.trim().eq_ignore_ascii_case(local))
    };
    !url.split('|').all(is_local)
}

pub(crate) fn url(general: &General) -> Result<&str> {
    let url = general.url.as_deref().filter(|url| !url.is_empty());
    url.ok_or_else(|| {
        Failure::usage("no storage is named").with_help(
            "set QUEUE_URL, or give --url: `sqlite:PATH`, `postgres://…`, `azure://ACCOUNT`, …",
        )
    })
}

/// Returns the URL, of shards that of the first storage: they may name more storages than there are yet.
fn first(url: &str) -> &str {
    let shards = url.strip_prefix("sharded:");
    let first = shards.and_then(|shards| shards.split('|').nth(1));
    first.map_or(url, str::trim)
}

/// Returns the SQLite file that the URL names, if it names one.
fn sqlite(url: &str) -> Result<Option<SqliteBuilder>> {
    let scheme = url.split(':').next().unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("sqlite") {
        return Ok(None);
    }
    let file = SqliteBuilder::from_url(url, Arc::new(SystemClock::new()));
    let refused = |error| Failure::usage(format!("{error:?}"));
    file.map(Some).map_err(refused)
}

/// Returns the SQLite file that the URL names, which exists.
///
/// # Errors
/// If the URL names no such file. `what` is what can be done with a SQLite file only.
pub(crate) fn sqlite_file(general: &General, what: &str) -> Result<SqliteBuilder> {
    let file = sqlite(url(general)?)?.ok_or_else(|| {
        let text = format!("only a SQLite file can {what}");
        Failure::new(Exit::Unsupported, text).with_help("`export` copies messages of any storage")
    })?;
    check_exists(file.path())?;
    Ok(file)
}

fn check_exists(path: &Path) -> Result<()> {
    let shown = path.display();
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::new(
            Exit::NotFound,
            format!("the file `{shown}` does not exist"),
        )
        .with_help("check the path; `create`, `submit` and `import` make a new file")),
        Err(error) => {
            let access = file_access(path, &error);
            let text = format!("failed to look for `{shown}`: {error}{access}");
            Err(Failure::new(Exit::Failed, text))
        }
    }
}

/// What messages that are submitted here name as their client.
fn client() -> String {
    format!("queues/{}", std::process::id())
}
