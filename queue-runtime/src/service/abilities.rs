use queue_core::backend::{
    Atomicity, Attachments, Browsing, Capabilities, ConditionalPuts, Groups, Tracking,
};

use super::QueueService;

/// What the storage of a service offers, from [`QueueService::can`]. What is `false` fails as
/// [`Unsupported`](crate::ErrorKind::Unsupported), or is weaker, as each field says.
///
/// A program that needs something asks before it starts anything:
///
/// ```
/// use queue_runtime::QueueService;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("memory:").await?;
/// if !service.can().groups {
///     return Err("this program needs a storage that keeps the order of groups".into());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Abilities {
    /// Settle a message and put its follow-ups, or its copy on the poison queue, in one step. Otherwise a crash between two
    /// operations leaves a second copy, with the same id.
    pub settle_in_one_step: bool,
    /// Change the application's own rows in the step that settles a message or submits one.
    pub transactions: bool,
    /// Keep [unique keys](crate::send::Submit::unique_for) in the step that puts a message, and skip ticks whose
    /// predecessor runs ([`Overlap::Skip`](crate::recurring::Overlap::Skip)). Otherwise
    /// [`unique_in`](crate::send::Submit::unique_in) a result store.
    pub unique: bool,
    /// Record the ticks of [schedules](QueueService::schedule) in the step that puts their messages, so that they can be
    /// paused and listed from any process. Otherwise they are [`recorded_in`](crate::recurring::Schedule::recorded_in) a
    /// result store, or in that of `ServiceBuilder::results_in`.
    pub schedules: bool,
    /// Handle the messages of a [group](crate::send::Submit::group) in order in all processes. Otherwise
    /// [`one_at_a_time_by`](crate::ListenerBuilder::one_at_a_time_by) within one listener.
    pub groups: bool,
    /// Keep a [rate](crate::AnyQueue::set_rate) for the listeners of all processes.
    pub shared_rates: bool,
    /// Tell the [status](QueueService::status) of a tracked message, and take it back.
    pub tracking: bool,
    /// Show all messages of a queue, also invisible ones, and find one by its id. Otherwise the first visible ones.
    pub browsing: bool,
    /// Keep [payloads](crate::payloads) that do not fit a message: in the storage, or in the service's payload store.
    pub large_payloads: bool,
    /// Record results of work that is done once, by [`QueueService::results`].
    pub results: bool,
}

impl QueueService {
    /// Tells what the storage offers, without a request.
    #[must_use]
    pub fn can(&self) -> Abilities {
        let backend = &self.context.backend;
        let capabilities: &Capabilities = backend.capabilities();
        let is_atomic = capabilities.atomicity == Atomicity::Atomic;
        let records = capabilities.conditional_puts == ConditionalPuts::Supported;
        Abilities {
            settle_in_one_step: is_atomic,
            transactions: backend.transactions().is_some(),
            unique: records && is_atomic,
            schedules: records,
            groups: capabilities.groups == Groups::Supported,
            shared_rates: backend.results().is_some(),
            tracking: capabilities.tracking == Tracking::Supported,
            browsing: capabilities.browsing == Browsing::Supported,
            large_payloads: capabilities.attachments == Attachments::Supported
                || self.context.payloads.is_some(),
            results: self.results().is_some(),
        }
    }
}
