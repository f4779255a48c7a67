//! What a backend can do, and the checks of arguments against it, made before an operation starts.

use std::time::Duration;

use super::groups::{GroupLimit, Groups, MAX_GROUP, NO_GROUPS};
use super::messages::{MAX_ITEMS, NewMessage, TimeToLive};
use super::ops::{ApplyError, Op};
use super::queues::{Metadata, PageMark};
use super::tracking::{NO_TRACKING, Tracking};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::QueueName;
use crate::text::has_forbidden;

/// The limits and guarantees of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The largest body of a new message, in bytes.
    pub max_body: usize,
    /// The largest body, in bytes, of a message that is [moved](super::NewMessage::moved): at least `max_body`.
    pub max_moved_body: usize,
    /// The largest metadata of a queue: the total length of names and values, in bytes.
    pub max_metadata: usize,
    /// The most messages that one receive or peek returns.
    pub max_receive: usize,
    /// The shortest visibility timeout of a receive. A backend may round longer timeouts up, as Azure does to whole
    /// seconds.
    pub min_visibility: Duration,
    /// The longest visibility timeout of a receive. An update may ask for the longer of this timeout and `max_delay`.
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
    /// Whether a message handed back keeps its place in the queue.
    pub places: Places,
    /// Whether messages can be browsed.
    pub browsing: Browsing,
    /// Whether conditional puts are supported.
    pub conditional_puts: ConditionalPuts,
    /// Whether messages can have data besides their bodies.
    pub attachments: Attachments,
    /// Whether messages can have groups, whose order the storage keeps.
    pub groups: Groups,
    /// Whether messages can be tracked: found by their ids.
    pub tracking: Tracking,
    /// The most operations on messages in one [`apply`](super::Backend::apply), and the most [swaps](Op::Swap).
    pub max_apply: usize,
    /// The maximum total size, in bytes, of the bodies in one [`apply`](super::Backend::apply) without the largest
    /// body.
    pub max_apply_bytes: usize,
}

/// The bytes that a body may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BodyForm {
    /// A body may contain any bytes.
    Bytes,
    /// A body contains text that XML can carry. Bodies that XML cannot carry must be encoded as Base64.
    Text,
}

/// Whether messages can have [attachments](super::Attachment).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attachments {
    /// Attachments are supported: message and attachment are stored in one step.
    Supported,
    /// Attachments are stored in a payload store beside the messages, as their
    /// [references](crate::wire::PayloadRef) say.
    InStore,
    /// Attachments are not supported: a put with an attachment fails with
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    Unsupported,
}

/// The atomicity of several operations that are applied together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Atomicity {
    /// All operations happen, or no operation happens. [`Op::DeleteItems`] is supported.
    Atomic,
    /// The operations happen in order until an operation fails.
    InOrder,
}

/// What the error of an update or delete with a stale receipt proves about the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StaleReceipts {
    /// [`ReceiptMismatch`](crate::ErrorKind::ReceiptMismatch) proves that the message exists,
    /// [`MessageNotFound`](crate::ErrorKind::MessageNotFound) that it does not.
    Distinct,
    /// Neither `ReceiptMismatch` nor `MessageNotFound` proves whether the message exists.
    Ambiguous,
}

/// Whether a message that is handed back without having been handled keeps its place in the order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Places {
    /// [`PutBackPlace::Kept`](super::PutBackPlace::Kept) keeps the place of a message.
    Kept,
    /// A message that is handed back is received after all messages already visible.
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

/// Whether [`Op::Swap`] is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionalPuts {
    /// A put and the compare-and-swap of a recorded value can be one atomic step, which can also be part of an
    /// [`apply`](super::Backend::apply).
    Supported,
    /// Puts and operations cannot depend on a condition.
    Unsupported,
}

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

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
    /// Three limits differ from Azure's, because a program adapts to them by itself: messages per receive, the pause
    /// between polls, and the size of a moved message, which has no limit. A backend that implements
    /// [`browse`](super::Backend::browse), [`Op::Swap`] or [`PutBackPlace::Kept`](super::PutBackPlace::Kept) sets
    /// `browsing`, `conditional_puts` or `places`; one that keeps the order of groups sets `groups`, and one that finds messages by their ids, `tracking`.
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
            groups: Groups::Unsupported,
            tracking: Tracking::Unsupported,
            max_apply: 1024,
            max_apply_bytes: 8 * 1024 * 1024,
        }
    }
}

/// The longest time to live of a message: that of Azure, 68 years.
pub const MAX_TIME_TO_LIVE: Duration = Duration::from_secs(i32::MAX as u64);

/// The longest `max_delay` that a program can choose. A message hidden for longer is taken for damaged.
const LONGEST_MAX_DELAY: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// Parses the value of the option `max_delay` of an engine's URL, such as `30d`.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if the text is no duration, or not within 7 to 3650 days.
pub fn parse_max_delay(text: &str) -> Result<Duration> {
    let parsed = crate::text::parse_duration(text);
    let allowed = WEEK..=LONGEST_MAX_DELAY;
    let within = parsed.ok().filter(|delay| allowed.contains(delay));
    within.ok_or_else(|| {
        let detail = format!(
            "the option `max_delay` is {text:?}; allowed is `7d` to `3650d`, such as `30d`"
        );
        let refused = Error::new(ErrorKind::InvalidInput, Operation::Open);
        refused.with_detail(detail).unsent()
    })
}

/// Checks the arguments of one operation on one queue, before anything is sent or written: part of what every
/// [`Backend`](super::Backend) promises.
///
/// The checks' errors are [`ErrorKind::InvalidInput`], or [`ErrorKind::TooLarge`] for a body, name the limit, and say
/// that nothing was sent.
///
/// ```
/// use queue_core::backend::{Capabilities, NewMessage};
/// use queue_core::{ErrorKind, Operation, QueueName};
///
/// let orders = QueueName::from_static("orders");
/// let capabilities = Capabilities::local();
/// let limits = capabilities.limits(Operation::Put, &orders);
/// let error = limits.check_put(&NewMessage::new(vec![0_u8; 1_000_000])).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::TooLarge);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// The limits and guarantees of the backend.
    pub capabilities: &'a Capabilities,
    /// The operation that errors name.
    pub operation: Operation,
    /// The queue that errors name.
    pub queue: &'a QueueName,
}

impl Limits<'_> {
    /// Checks a message to be put: the size of its body, its delay and its time to live.
    ///
    /// # Errors
    /// If the message is outside the limits.
    pub fn check_put(&self, message: &NewMessage) -> Result<()> {
        let largest = if message.moved {
            self.capabilities.max_moved_body
        } else {
            self.capabilities.max_body
        };
        self.check_body(message.body.len(), largest)?;
        if message.attachment.is_some() && self.capabilities.attachments == Attachments::Unsupported
        {
            let refused = Error::new(ErrorKind::Unsupported, self.operation).with_queue(self.queue);
            return Err(refused
                .unsent()
                .with_detail("this storage has no attachments"));
        }
        if let Some(group) = &message.group {
            self.check_group(group)?;
        }
        if message.tracked.is_some() && self.capabilities.tracking == Tracking::Unsupported {
            return Err(self.error(ErrorKind::Unsupported, NO_TRACKING.to_owned()));
        }
        let longest = self.capabilities.max_delay;
        if message.delay > longest {
            return Err(self.invalid(format!(
                "the delay of {:?} exceeds the maximum of {longest:?}",
                message.delay
            )));
        }
        match message.time_to_live {
            TimeToLive::After(Duration::ZERO) => {
                Err(self.invalid("the time to live is zero".into()))
            }
            TimeToLive::After(lifetime) if lifetime > MAX_TIME_TO_LIVE => {
                Err(self.invalid(format!(
                    "the time to live of {lifetime:?} exceeds the maximum of {MAX_TIME_TO_LIVE:?}; a message without \
                     one never expires"
                )))
            }
            TimeToLive::After(lifetime) if lifetime <= message.delay => Err(self.invalid(format!(
                "the time to live of {lifetime:?} does not exceed the delay of {:?}",
                message.delay
            ))),
            _ => Ok(()),
        }
    }

    fn check_group(&self, group: &str) -> Result<()> {
        if self.capabilities.groups == Groups::Unsupported {
            let refused = Error::new(ErrorKind::Unsupported, self.operation).with_queue(self.queue);
            return Err(refused.unsent().with_detail(NO_GROUPS));
        }
        if group.is_empty() || group.len() > MAX_GROUP || has_forbidden(group) {
            let length = group.len();
            return Err(self.invalid(format!(
                "the group of the message has {length} bytes; allowed are 1 to {MAX_GROUP} without control characters"
            )));
        }
        Ok(())
    }

    /// Checks the number of messages and the visibility timeout of a receive.
    ///
    /// # Errors
    /// If one of the arguments is outside the limits.
    pub fn check_receive(&self, max: usize, visibility: Duration) -> Result<()> {
        self.check_max(max)?;
        let (shortest, longest) = (
            self.capabilities.min_visibility,
            self.capabilities.max_visibility,
        );
        if visibility < shortest || visibility > longest {
            return Err(self.invalid(format!(
                "the visibility timeout of {visibility:?} is not within {shortest:?} to {longest:?}"
            )));
        }
        Ok(())
    }

    /// Checks the number of messages of a peek or a page.
    ///
    /// # Errors
    /// If the number is zero or above the limit.
    pub fn check_max(&self, max: usize) -> Result<()> {
        let most = self.capabilities.max_receive;
        if max == 0 || max > most {
            return Err(self.invalid(format!(
                "the number of messages must be 1 to {most}, not {max}"
            )));
        }
        Ok(())
    }

    /// Checks the visibility timeout of an update, and the length of the new body in bytes.
    ///
    /// # Errors
    /// If one of the arguments is outside the limits.
    pub fn check_update(&self, visibility: Duration, body: Option<usize>) -> Result<()> {
        let Capabilities {
            max_visibility,
            max_delay,
            max_body,
            ..
        } = *self.capabilities;
        let longest = max_visibility.max(max_delay);
        if visibility > longest {
            return Err(self.invalid(format!(
                "the visibility timeout of {visibility:?} exceeds the maximum of {longest:?}"
            )));
        }
        body.map_or(Ok(()), |length| self.check_body(length, max_body))
    }

    /// Checks a queue's metadata.
    ///
    /// # Errors
    /// If the metadata is above the limit, or has a [`GROUP_LIMIT`](super::GROUP_LIMIT) that is invalid, or that the storage
    /// cannot keep.
    pub fn check_metadata(&self, metadata: &Metadata) -> Result<()> {
        let (size, largest) = (metadata.size(), self.capabilities.max_metadata);
        if size > largest {
            return Err(self.invalid(format!(
                "names and values of the metadata have {size} bytes; the maximum is {largest}"
            )));
        }
        let limit = GroupLimit::of(metadata).map_err(|error| self.invalid(error.to_string()))?;
        if limit.is_some() && self.capabilities.groups == Groups::Unsupported {
            return Err(self.error(ErrorKind::Unsupported, NO_GROUPS.to_owned()));
        }
        Ok(())
    }

    fn check_body(&self, length: usize, largest: usize) -> Result<()> {
        if length > largest {
            return Err(self.error(
                ErrorKind::TooLarge,
                format!("it has {length} bytes; the maximum is {largest}"),
            ));
        }
        Ok(())
    }

    /// Returns the error of a mark that no page has returned.
    #[must_use]
    pub fn invalid_mark(&self, mark: &PageMark) -> Error {
        self.invalid(format!("{:?} is not the mark of a page", mark.as_str()))
    }

    /// Returns an error of kind [`ErrorKind::InvalidInput`] for an invalid argument.
    #[must_use]
    pub fn invalid(&self, detail: String) -> Error {
        self.error(ErrorKind::InvalidInput, detail)
    }

    fn error(&self, kind: ErrorKind, detail: String) -> Error {
        Error::new(kind, self.operation)
            .with_queue(self.queue)
            .with_detail(detail)
            .unsent()
    }
}

/// Checks the operations of an [`apply`](super::Backend::apply), each also with `check`.
///
/// # Errors
/// [`ApplyError`] with the index of the first refused operation; no operation is carried out.
pub fn check_ops(
    capabilities: &Capabilities,
    ops: &[Op],
    check: impl Fn(&Op) -> Result<()>,
) -> Result<(), ApplyError> {
    let refused = |index, error| Err(ApplyError::nothing_done(index, error));
    let operation = Op::operation(ops);
    if let [op] = ops {
        let checked = check_op(capabilities, operation, op).and_then(|()| check(op));
        return checked.or_else(|error| refused(0, error));
    }
    let fitting = capabilities.fitting(ops);
    if fitting < ops.len() {
        let (most, bytes) = (capabilities.max_apply, capabilities.max_apply_bytes);
        let detail = format!(
            "of its {} operations, {fitting} are within the limit of {most} operations, and of {bytes} bytes \
             of bodies besides the largest",
            ops.len()
        );
        let error = Error::new(ErrorKind::InvalidInput, operation).with_detail(detail);
        return refused(fitting, error.unsent());
    }
    for (index, op) in ops.iter().enumerate() {
        if let Err(error) = check_op(capabilities, operation, op).and_then(|()| check(op)) {
            return refused(index, error);
        }
    }
    Ok(())
}

/// Checks one operation of an [`apply`](super::Backend::apply).
fn check_op(capabilities: &Capabilities, operation: Operation, op: &Op) -> Result<()> {
    let limits = capabilities.limits(operation, op.queue());
    let unsupported = |detail| {
        let refused = Error::new(ErrorKind::Unsupported, operation).with_queue(op.queue());
        Err(refused.with_detail(detail).unsent())
    };
    match op {
        Op::Put { message, .. } => limits.check_put(message),
        Op::Renew {
            visibility, body, ..
        } => limits.check_update(*visibility, body.as_ref().map(bytes::Bytes::len)),
        Op::PutBack { place, body, .. } => {
            limits.check_update(place.delay(), body.as_ref().map(bytes::Bytes::len))
        }
        Op::Delete { .. } => Ok(()),
        Op::DeleteItems { items, of, .. } if capabilities.atomicity == Atomicity::Atomic => {
            let last = items.iter().last();
            if *of <= MAX_ITEMS && last.is_some_and(|last| last < *of) {
                return Ok(());
            }
            let detail =
                format!("{items:?} are no items of a pack of {of}, which has at most {MAX_ITEMS}");
            Err(limits.invalid(detail))
        }
        Op::DeleteItems { .. } => unsupported("this storage cannot delete an item of a pack alone"),
        Op::Swap { .. } if capabilities.conditional_puts == ConditionalPuts::Supported => Ok(()),
        Op::Swap { .. } => unsupported("this storage has no conditional puts"),
    }
}
