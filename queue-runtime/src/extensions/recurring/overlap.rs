//! What a tick does while the message of the one before is not settled.

use queue_core::Message;

use crate::kernel::send::{Submit, UniqueKey};

/// What a schedule does about a tick whose predecessor's message is still waiting or being handled.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{Overlap, every};
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Report {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hour = Duration::from_secs(60 * 60);
/// let service = testing::service().await;
/// let schedule = service.schedule("report", every(hour), |_| Report {});
/// let schedule = schedule.overlap(Overlap::Skip).start()?;
/// tokio::time::sleep(3 * hour).await;
/// assert_eq!(service.submitted::<Report>().len(), 1, "nobody has handled the first");
///
/// let report = service.accept::<Report>().await?.expect("the first");
/// report.complete().await?;
/// tokio::time::sleep(hour).await;
/// assert_eq!(service.submitted::<Report>().len(), 2);
/// # schedule.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overlap {
    /// Each tick is submitted: several messages may be handled at once.
    #[default]
    Allow,
    /// A tick is not submitted while an earlier message of the schedule is neither completed, poison nor gone, for 7 days at
    /// most. A process that skips a tick logs it.
    Skip,
    /// Each tick is submitted, into one [group](crate::send::Submit::group), in place of the one that the type has: the messages
    /// are handled one after the other, in all processes. On a queue with a [limit](crate::AnyQueue::set_group_limit), as many at
    /// once as it says.
    Wait,
}

impl Overlap {
    /// Returns the submission of a tick, and the key that its message holds until it is settled, if any.
    pub(super) fn apply<M: Message>(
        self,
        schedule: &str,
        submit: Submit<M>,
    ) -> (Submit<M>, Option<UniqueKey>) {
        let name = || format!("schedule {schedule}");
        match self {
            Self::Allow => (submit, None),
            Self::Skip => {
                let key = submit.key_of(Some(name()), "message".to_owned());
                (submit, Some(key))
            }
            Self::Wait => (submit.group(name()), None),
        }
    }
}
