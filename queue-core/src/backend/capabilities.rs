use std::time::Duration;

use super::limits::Limits;
use super::model::Op;
use crate::{Operation, QueueName};

/// The limits and guarantees of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest body of a new message, in bytes.
    pub max_body: usize,
    /// The largest body of a message that is [moved](super::NewMessage::moved), in bytes. At least `max_body`.
    pub max_moved_body: usize,
    /// The largest metadata of a queue: the total length of names and values, in bytes.
    pub max_metadata: usize,
    /// The maximum number of messages that one receive or peek returns.
    pub max_receive: u32,
    /// The shortest visibility timeout of a receive. A backend may round longer ones up, as Azure does to whole
    /// seconds.
    pub min_visibility: Duration,
    /// The longest visibility timeout of a receive. An update may ask for as much as it or a delay.
    pub max_visibility: Duration,
    /// The longest delay of a message that is put, or put back.
    pub max_delay: Duration,
    /// The default for the longest pause between polls of an empty queue, which depends on the cost of a
    /// poll.
    pub idle_cap: Duration,
    /// The bytes that a body may contain.
    pub body: BodyForm,
    /// The guarantee of [`apply`](super::Backend::apply).
    pub atomicity: Atomicity,
    /// What the error of an update or delete with a stale receipt proves.
    pub stale_receipts: StaleReceipts,
    /// Whether a message that is handed back keeps its place.
    pub places: Places,
    /// Whether messages can be browsed.
    pub browsing: Browsing,
    /// Whether conditional puts are supported.
    pub conditional_puts: ConditionalPuts,
    /// Whether messages can have data besides their bodies.
    pub attachments: Attachments,
    /// The maximum number of operations on messages in one [`apply`](super::Backend::apply), and also the maximum
    /// number of [swaps](Op::Swap) in it.
    pub max_apply: usize,
    /// The maximum total size of the bodies in one [`apply`](super::Backend::apply), in bytes, not counting the largest
    /// one.
    pub max_apply_bytes: usize,
}

/// What a body may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyForm {
    /// Any bytes.
    Bytes,
    /// Text that XML can carry. Other bodies must be encoded as Base64.
    Text,
}

/// Whether messages can have [attachments](super::Attachment).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attachments {
    /// Yes: message and attachment are stored in one step.
    Supported,
    /// Yes, in a store of payloads beside the messages, as their [references](crate::wire::PayloadRef) say.
    InStore,
    /// No: a put with one fails with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    Unsupported,
}

/// The atomicity of several operations that are applied together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Atomicity {
    /// All or none of them happen. [`Op::DeleteItems`] is supported.
    Atomic,
    /// They happen in order until one fails.
    InOrder,
}

/// What the error of an update or delete with a stale receipt proves about the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StaleReceipts {
    /// [`ReceiptMismatch`](crate::ErrorKind::ReceiptMismatch) proves that the message exists,
    /// [`MessageNotFound`](crate::ErrorKind::MessageNotFound) that it does not.
    Distinct,
    /// Neither error proves whether the message exists.
    Ambiguous,
}

/// Whether a message that is handed back, because nobody has handled it, keeps its place among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Places {
    /// [`Op::PutBack`] is supported.
    Kept,
    /// A message that is made visible again is received after all that are visible then.
    Lost,
}

/// Whether [`browse`](super::Backend::browse) is implemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Browsing {
    /// All messages of a queue can be browsed, visible or not, and deleted or updated by the receipts of a page.
    Supported,
    /// Only the first visible messages can be seen, by a [`peek`](super::Backend::peek).
    Unsupported,
}

/// Whether [`put_if`](super::Backend::put_if) is implemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionalPuts {
    /// A put and the compare-and-swap of a recorded value can be one atomic step, which can also be part of an
    /// [`apply`](super::Backend::apply).
    Supported,
    /// Puts and operations cannot depend on a condition.
    Unsupported,
}

pub(super) const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl Capabilities {
    /// Returns how many of the first operations fit in one [`apply`](super::Backend::apply).
    #[must_use]
    pub fn fitting(&self, ops: &[Op]) -> usize {
        let (mut bytes, mut largest) = (0_usize, 0);
        let (mut on_messages, mut swaps) = (0, 0);
        let fits = |op: &&Op| {
            bytes = bytes.saturating_add(op.body_len());
            largest = largest.max(op.body_len());
            let count = match op {
                Op::Swap { .. } => &mut swaps,
                _ => &mut on_messages,
            };
            *count += 1;
            *count <= self.max_apply && bytes - largest <= self.max_apply_bytes
        };
        ops.iter().take_while(fits).count()
    }

    /// Returns the checks of the arguments of one operation on one queue.
    #[must_use]
    pub fn limits<'a>(&'a self, operation: Operation, queue: &'a QueueName) -> Limits<'a> {
        Limits {
            capabilities: self,
            operation,
            queue,
        }
    }

    /// The capabilities of a local backend: bodies of any bytes, atomic operations, distinct errors for
    /// stale receipts, and the limits of Azure Queue Storage, which are 48 KiB per body (64 KiB in Base64),
    /// 8 KiB of metadata per queue, visibility timeouts of 1 second to 7 days, and delays of up to 7 days.
    ///
    /// Three differ from Azure's, because a program adapts to them by itself: messages per receive, the pause
    /// between polls, and the size of a moved message, which has none. A backend that implements
    /// [`browse`](super::Backend::browse), [`put_if`](super::Backend::put_if) or [`Op::PutBack`] sets that.
    #[must_use]
    pub fn local() -> Self {
        Self {
            max_body: 48 * 1024,
            max_moved_body: usize::MAX,
            max_metadata: 8 * 1024,
            max_receive: 256,
            min_visibility: Duration::from_secs(1),
            max_visibility: WEEK,
            max_delay: WEEK,
            idle_cap: Duration::from_millis(250),
            body: BodyForm::Bytes,
            atomicity: Atomicity::Atomic,
            stale_receipts: StaleReceipts::Distinct,
            places: Places::Lost,
            browsing: Browsing::Unsupported,
            conditional_puts: ConditionalPuts::Unsupported,
            attachments: Attachments::Unsupported,
            max_apply: 1024,
            max_apply_bytes: 8 * 1024 * 1024,
        }
    }
}
