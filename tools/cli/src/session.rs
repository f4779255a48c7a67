use queue_runtime::{AnyQueue, QueueService};

use crate::arguments::General;
use crate::failure::Result;
use crate::output::{Output, ask};
use crate::storage::{self, Missing};

/// What a command works with.
pub(crate) struct Session {
    pub(crate) service: QueueService,
    pub(crate) output: Output,
    yes: bool,
}

impl Session {
    /// Opens the storage that the URL names. `missing` is what happens to a file that does not exist.
    pub(crate) async fn open(general: &General, missing: Missing) -> Result<Self> {
        let service = storage::open(general, missing).await?;
        Ok(Self {
            service,
            output: Output::new(general),
            yes: general.yes,
        })
    }

    /// Returns the queue of this name, or of a URI that an envelope or a record names.
    pub(crate) fn queue(&self, name: &str) -> Result<AnyQueue> {
        Ok(self.service.any_queue_at(name)?)
    }

    /// Asks whether to do what destroys something, unless `--yes` says so.
    ///
    /// # Errors
    /// If the answer is no, or there is no terminal to ask at.
    pub(crate) fn confirm(&self, question: &str) -> Result<()> {
        if self.yes { Ok(()) } else { ask(question) }
    }
}
