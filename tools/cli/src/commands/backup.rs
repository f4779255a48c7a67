use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::arguments::General;
use crate::failure::Result;
use crate::output::Output;
use crate::storage::sqlite_file;

/// Copy a SQLite file while it is in use. The copy is complete and synced when the command ends.
///
/// Bodies that do not match their checksums are copied as they are; `check` finds them.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The path of the copy, where no file may exist.
    to: PathBuf,
}

pub(crate) async fn run(backup: &Backup, general: &General) -> Result<()> {
    let backend = sqlite_file(general, "be copied")?.open().await?;
    backend.backup(&backup.to).await?;
    let bytes = backup.to.metadata().map(|file| file.len()).ok();
    let to = backup.to.display().to_string();
    let value = json!({ "file": to, "bytes": bytes });
    Output::new(general).done(&format!("copied to `{to}`"), &value)
}
