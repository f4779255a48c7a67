use queue_core::backend::{Atomicity, Browsing};

use super::pass::Pass;
use super::redrive::Redrive;
use super::report::{RedriveError, Redriven};
use super::{browsing, receiving};

impl Redrive {
    /// Returns what [`run`](Self::run) would do now, without changing anything.
    ///
    /// On a storage that can be [browsed](crate::backend::Backend::browse), it looks at the whole queue. Elsewhere, as
    /// on Azure, it looks at the messages that one peek returns, up to the backend's
    /// [`max_receive`](crate::backend::Capabilities::max_receive), and [`Redriven::unseen`] is the approximate number
    /// of the others.
    ///
    /// # Errors
    /// The backend's error; also [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a filter by age on a storage
    /// that cannot be browsed: a peek does not tell the storage's time.
    pub async fn dry_run(&self) -> Result<Redriven, RedriveError> {
        let mut pass = Pass::new(self, true);
        if self.is_browsed() {
            browsing::run(&mut pass).await?;
        } else {
            receiving::peek(&mut pass).await?;
        }
        Ok(pass.counts)
    }

    /// Redrives all messages that are visible now.
    ///
    /// On a storage that cannot be [browsed](crate::backend::Backend::browse) and is too slow to return them all before
    /// it returns the first ones again and again, [`Redriven::unseen`] is the approximate number of the others.
    ///
    /// Each message is put on its queue and deleted from the poison queue, in one step if the backend is
    /// atomic. Otherwise a crash between the two leaves a copy with the same message id, and loses nothing.
    ///
    /// What the storage certainly did not do is tried again, as the [`StorageRetry`](crate::StorageRetry) of the service
    /// allows; the others are not, as they might be carried out twice.
    ///
    /// # Errors
    /// [`RedriveError`] has the backend's error and what was done before. Messages redriven before it are not moved
    /// back. Messages that only their own queue refuses do not stop the redrive; they are counted as
    /// [`refused`](Redriven::refused).
    ///
    /// # Cancel safety
    /// Dropping the future stops the redrive. Messages redriven before that are not moved back. On a storage that cannot
    /// be browsed, the messages that it held are handed back in the background; if the process is killed, they stay
    /// invisible for up to a minute, or longer with an [`interval`](Self::interval) of more than 30 seconds.
    pub async fn run(&self) -> Result<Redriven, RedriveError> {
        let mut pass = Pass::new(self, false);
        if self.is_browsed() {
            browsing::run(&mut pass).await?;
        } else {
            receiving::run(&mut pass).await?;
        }
        Ok(pass.counts)
    }

    /// Whether messages can be moved without receiving them: only in one step, because without a lease two redrives
    /// could both put a message.
    fn is_browsed(&self) -> bool {
        let capabilities = self.context.backend.capabilities();
        capabilities.browsing == Browsing::Supported && capabilities.atomicity == Atomicity::Atomic
    }
}
