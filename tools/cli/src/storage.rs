//! Opening the storage that a URL names.

use std::path::Path;

use queue_runtime::QueueService;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};
use crate::output::note;

/// What happens if the URL names a SQLite file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is created.
    Create,
    /// It is an error: a path with a mistake in it must not look like a storage without queues.
    Report,
}

pub(crate) async fn open(general: &General, missing: Missing) -> Result<QueueService> {
    let url = url(general)?;
    if missing == Missing::Report
        && let Some(path) = sqlite_path(url)
    {
        check_exists(path)?;
    }
    if url.starts_with("memory:") {
        note("`memory:` is this program's own memory: nothing is in it, and nothing stays there");
    }
    let mut builder = QueueService::builder(url).client(client());
    if let Some(container) = &general.payload_container {
        builder = builder.payload_container(container);
    }
    Ok(builder.connect().await?)
}

pub(crate) fn url(general: &General) -> Result<&str> {
    let url = general.url.as_deref().filter(|url| !url.is_empty());
    url.ok_or_else(|| {
        Failure::usage("no storage is named")
            .with_help("set QUEUE_URL, or give --url: `sqlite:PATH`, `azure://ACCOUNT`, …")
    })
}

/// Returns the path of `sqlite:PATH?options`.
fn sqlite_path(url: &str) -> Option<&Path> {
    let (scheme, rest) = url.split_once(':')?;
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let path = rest.split('?').next().unwrap_or(rest);
    scheme
        .eq_ignore_ascii_case("sqlite")
        .then(|| Path::new(path))
}

/// Returns the path of the SQLite file that the URL names, which exists.
///
/// # Errors
/// If it names no such file. `what` is what can be done with one only.
pub(crate) fn sqlite_file<'a>(general: &'a General, what: &str) -> Result<&'a Path> {
    let path = sqlite_path(url(general)?).ok_or_else(|| {
        let text = format!("only a SQLite file can {what}");
        Failure::new(Exit::Unsupported, text).with_help("`export` copies messages of any storage")
    })?;
    check_exists(path)?;
    Ok(path)
}

fn check_exists(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let text = format!("the file `{}` does not exist", path.display());
    Err(Failure::new(Exit::NotFound, text)
        .with_help("check the path; `create`, `submit` and `import` make a new file"))
}

/// What messages that are submitted here name as their client.
fn client() -> String {
    format!("queues/{}", std::process::id())
}
