use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use queue_runtime::SystemClock;
use queue_runtime::backend::SqliteBuilder;
use serde_json::json;

use crate::arguments::General;
use crate::failure::Result;
use crate::output::Output;
use crate::storage::{sqlite_file, url};

/// Copy a SQLite file while it is in use. The copy is complete and synced when this ends.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The copy, which must not exist.
    to: PathBuf,
}

pub(crate) async fn run(backup: &Backup, general: &General) -> Result<()> {
    sqlite_file(general, "be copied")?;
    let url = url(general)?;
    let backend = SqliteBuilder::from_url(url, Arc::new(SystemClock::new()))?;
    let backend = backend.open().await?;
    backend.backup(&backup.to).await?;
    let bytes = backup.to.metadata().map(|file| file.len()).ok();
    let to = backup.to.display().to_string();
    let value = json!({ "file": to, "bytes": bytes });
    Output::new(general).done(&format!("copied to `{to}`"), &value)
}
