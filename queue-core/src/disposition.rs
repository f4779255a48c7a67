//! The outcome of a handler.

mod follow_up;

use std::error::Error as StdError;
use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use crate::message::{DecodeError, Message};
use crate::text::error_chain;

pub use follow_up::FollowUp;

/// The outcome of a handler: what to do with the message.
///
/// ```
/// use std::time::Duration;
/// use queue_core::Disposition;
///
/// fn outcome(status: u16) -> Disposition {
///     match status {
///         200 => Disposition::complete(),
///         429 => Disposition::retry_after(Duration::from_secs(60), "too many requests"),
///         400..=499 => Disposition::reject(format!("status {status}")),
///         _ => Disposition::retry(format!("status {status}")),
///     }
/// }
/// assert!(matches!(outcome(404), Disposition::Reject(_)));
/// ```
#[derive(Debug)]
#[must_use = "a disposition takes effect only when the handler returns it"]
#[non_exhaustive]
pub enum Disposition {
    /// Delete the message and submit these follow-ups, in one step if the backend is atomic.
    Complete(Vec<FollowUp>),
    /// The attempt failed: retry.
    Retry {
        /// The delay before the next attempt; by default the retry policy's.
        after: Option<Duration>,
        /// What went wrong.
        error: Failure,
    },
    /// The attempt failed, and a retry would too: move the message to the poison queue.
    Reject(Failure),
    /// The work cannot be done yet: make the message visible again later, without counting the attempt.
    Postpone {
        /// The delay before the message is received again.
        after: Duration,
        /// What the work waits for, if the handler said so.
        reason: Option<Failure>,
    },
}

/// The error of a failed attempt, and whether to retry.
///
/// `?` converts any error into a failure that is retried according to the retry policy; [`Failure::retry_after`],
/// [`Failure::reject`] and [`Failure::postpone`] have other outcomes:
///
/// ```
/// use queue_core::Failure;
///
/// fn parse(text: &str) -> Result<u32, Failure> {
///     text.parse().map_err(Failure::reject)
/// }
/// assert!(parse("seven").is_err());
/// ```
///
/// Clones share the error, so that events and reports carry the error that the handler returned.
#[derive(Debug, Clone)]
pub struct Failure {
    advice: Advice,
    error: Arc<dyn StdError + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Advice {
    Retry(Option<Duration>),
    Reject,
    Postpone(Duration),
}

/// A value that a handler can return.
///
/// `()` completes the message. `Ok(value)` is converted like `value`. `Err` is retried according to the retry policy,
/// unless it is a [`Failure`] that requests otherwise.
///
/// ```
/// use queue_core::{Disposition, IntoDisposition};
///
/// let parsed: Result<(), _> = "seven".parse::<u32>().map(|_| ());
/// assert!(matches!(parsed.into_disposition(), Disposition::Retry { after: None, .. }));
/// assert!(matches!(().into_disposition(), Disposition::Complete(_)));
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not a disposition",
    note = "a handler returns `()`, `Disposition`, or a `Result` of either whose error is an \
            `std::error::Error + Send + Sync` or a `Failure`"
)]
pub trait IntoDisposition {
    /// Converts the value into a disposition.
    fn into_disposition(self) -> Disposition;
}

impl Disposition {
    /// Completes the message, without follow-ups.
    pub fn complete() -> Self {
        Self::Complete(Vec::new())
    }

    /// Completes the request and sends the reply `message` to the instance that waits for it, in one step if the
    /// backend is atomic.
    ///
    /// The reply's id is derived from that of the request, so that a handler that runs again sends a reply with the
    /// same id; an instance that waits takes the first reply. If nobody waits, because the message was submitted
    /// without a request for a reply, or the instance that waited is gone, no reply is sent. Only the handler of the
    /// message itself can reply to it, not those of its follow-ups.
    ///
    /// An instance that waits for a reply also learns if the message is completed without one, or moved to the poison
    /// queue.
    ///
    /// With a result store, a request for work that was done before gets the recorded reply.
    ///
    /// ```
    /// # use queue_core::{DecodeError, EncodeError, Message, MessageType};
    /// # struct Price(u32);
    /// # impl Message for Price {
    /// #     const TYPE: MessageType = MessageType::new("price", "prices");
    /// #     fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> { Ok(None) }
    /// #     fn encode(&self) -> Result<Vec<u8>, EncodeError> { Ok(self.0.to_string().into_bytes()) }
    /// #     fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> { Ok(Self(0)) }
    /// # }
    /// use queue_core::Disposition;
    ///
    /// fn price_of(item: &str) -> Disposition {
    ///     match item {
    ///         "tea" => Disposition::reply(&Price(4)),
    ///         _ => Disposition::reject("no such item"),
    ///     }
    /// }
    /// assert!(matches!(price_of("tea"), Disposition::Complete(_)));
    /// ```
    pub fn reply<M: Message>(message: &M) -> Self {
        Self::complete().then_follow_up(FollowUp::reply(message))
    }

    /// Retries the message according to the retry policy.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Failure::retry(error).into()
    }

    /// Retries the message after `delay`, also if that is beyond the storage's limit.
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Failure::retry_after(delay, error).into()
    }

    /// Moves the message to the poison queue.
    pub fn reject(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Failure::reject(error).into()
    }

    /// Puts the message back without counting the attempt, so that it is received again after `after`.
    ///
    /// Postpone work that cannot be done *yet*, such as a step whose earlier step has not ended. The number of
    /// postponements is not limited, but after 32 postponements a message is hidden for ever longer, up to a second, if
    /// `after` is shorter. A delay beyond the storage's limit is kept: a message that is received before it is due is
    /// put back again. A message that would expire within the delay is moved to the poison queue. A bare body has no
    /// room to record the postponement, so the receive of a bare body counts as an attempt.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_core::Disposition;
    ///
    /// fn ship(is_packed: bool) -> Disposition {
    ///     match is_packed {
    ///         true => Disposition::complete(),
    ///         false => Disposition::postpone(Duration::from_secs(60)),
    ///     }
    /// }
    /// assert!(matches!(ship(false), Disposition::Postpone { .. }));
    /// ```
    pub fn postpone(after: Duration) -> Self {
        Self::Postpone {
            after,
            reason: None,
        }
    }

    /// Submits `message` together with the completion, to its type's queue; [`FollowUp::with_queue`] chooses another
    /// queue.
    ///
    /// If the follow-up can never be stored, because it cannot be encoded, is too large, or its delay is over the
    /// backend's limit or not below its time to live, the message that caused it is moved to the poison queue: a retry
    /// would fail again. Only a completion submits `message`.
    pub fn then<M: Message>(self, message: &M) -> Self {
        self.then_follow_up(FollowUp::new(message))
    }

    /// Submits a [`FollowUp`] together with the completion.
    pub fn then_follow_up(mut self, follow_up: FollowUp) -> Self {
        if let Self::Complete(follow_ups) = &mut self {
            follow_ups.push(follow_up);
        }
        self
    }

    /// Decodes the follow-ups of type `M`, in their order, for the test of a handler. Follow-ups of other kinds are
    /// left out.
    ///
    /// ```
    /// # use queue_core::{DecodeError, EncodeError, Message, MessageType};
    /// # #[derive(Debug, PartialEq)]
    /// # struct Reminder;
    /// # impl Message for Reminder {
    /// #     const TYPE: MessageType = MessageType::new("reminder", "reminders");
    /// #     fn key(&self) -> Result<Option<Vec<serde_json::Value>>, EncodeError> { Ok(None) }
    /// #     fn encode(&self) -> Result<Vec<u8>, EncodeError> { Ok(b"null".to_vec()) }
    /// #     fn decode(_: u32, _: &[u8]) -> Result<Self, DecodeError> { Ok(Self) }
    /// # }
    /// use queue_core::Disposition;
    ///
    /// let disposition = Disposition::complete().then(&Reminder);
    /// assert_eq!(disposition.follow_ups::<Reminder>()?, [Reminder]);
    /// # Ok::<(), DecodeError>(())
    /// ```
    ///
    /// # Errors
    /// [`DecodeError`] if one of the follow-ups does not decode, or could not be encoded.
    pub fn follow_ups<M: Message>(&self) -> Result<Vec<M>, DecodeError> {
        let follow_ups = match self {
            Self::Complete(follow_ups) => follow_ups.as_slice(),
            _ => &[],
        };
        follow_ups
            .iter()
            .filter(|follow_up| M::TYPE.accepts(follow_up.message_type.kind()))
            .map(FollowUp::decode)
            .collect()
    }
}

impl Failure {
    /// Creates a failure that is retried according to the retry policy.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Advice::Retry(None), error)
    }

    /// Creates a failure that is retried after `delay`.
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Advice::Retry(Some(delay)), error)
    }

    /// Creates a failure that moves the message to the poison queue without a retry.
    pub fn reject(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Advice::Reject, error)
    }

    /// Creates a failure that puts the message back without counting the attempt, as
    /// [`Disposition::postpone`] does, and logs the error as the reason.
    pub fn postpone(after: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(Advice::Postpone(after), error)
    }

    fn new(advice: Advice, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = Arc::from(error.into());
        Self { advice, error }
    }

    /// Returns the error, for example to look for a type in its [source](StdError::source) chain.
    #[must_use]
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.error
    }

    /// Returns the error and its causes as one text, outermost first.
    #[must_use]
    pub fn chain(&self) -> String {
        error_chain(&*self.error)
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl From<Failure> for Disposition {
    fn from(error: Failure) -> Self {
        match error.advice {
            Advice::Retry(after) => Self::Retry { after, error },
            Advice::Reject => Self::Reject(error),
            Advice::Postpone(after) => Self::Postpone {
                after,
                reason: Some(error),
            },
        }
    }
}

/// Compares the outcome, its delay, the [text](Failure::chain) of its error, and its follow-ups.
///
/// ```
/// use std::time::Duration;
/// use queue_core::Disposition;
///
/// assert_eq!(Disposition::reject("status 404"), Disposition::reject("status 404"));
/// assert_ne!(Disposition::reject("status 404"), Disposition::retry("status 404"));
///
/// let second = Duration::from_secs(1);
/// assert_ne!(Disposition::postpone(second), Disposition::postpone(2 * second));
/// ```
impl PartialEq for Disposition {
    fn eq(&self, other: &Self) -> bool {
        let parts = |disposition: &Self| match disposition {
            Self::Complete(_) => (None, None),
            Self::Retry { after, error } => (*after, Some(error.chain())),
            Self::Reject(error) => (None, Some(error.chain())),
            Self::Postpone { after, reason } => (Some(*after), reason.as_ref().map(Failure::chain)),
        };
        match (self, other) {
            (Self::Complete(follow_ups), Self::Complete(others)) => follow_ups == others,
            _ => discriminant(self) == discriminant(other) && parts(self) == parts(other),
        }
    }
}

/// Compares what to do with the message and the [text](Failure::chain) of the error. The type of the error does not
/// count.
///
/// ```
/// use queue_core::Failure;
///
/// let failure = Failure::from("seven".parse::<u32>().unwrap_err());
/// assert_eq!(failure, Failure::retry("invalid digit found in string"));
/// assert_ne!(failure, Failure::reject("invalid digit found in string"));
/// ```
impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.advice == other.advice && self.chain() == other.chain()
    }
}

impl Eq for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl IntoDisposition for () {
    fn into_disposition(self) -> Disposition {
        Disposition::complete()
    }
}

impl IntoDisposition for Disposition {
    fn into_disposition(self) -> Disposition {
        self
    }
}

impl<T: IntoDisposition, E: Into<Failure>> IntoDisposition for Result<T, E> {
    fn into_disposition(self) -> Disposition {
        match self {
            Ok(value) => value.into_disposition(),
            Err(error) => error.into().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    fn parse_error() -> std::num::ParseIntError {
        "x".parse::<i32>().expect_err("not a number")
    }

    #[test]
    fn errors_are_retried_unless_they_say_otherwise() {
        let boxed: Result<(), Box<dyn StdError + Send + Sync>> = Err("text".into());
        assert!(matches!(
            boxed.into_disposition(),
            Disposition::Retry { after: None, .. }
        ));
        let plain: Result<Disposition, std::num::ParseIntError> = Err(parse_error());
        assert!(matches!(
            plain.into_disposition(),
            Disposition::Retry { after: None, .. }
        ));
        let wait = Duration::from_secs(3);
        let later: Result<(), Failure> = Err(Failure::retry_after(wait, "busy"));
        let Disposition::Retry { after, .. } = later.into_disposition() else {
            panic!("no retry")
        };
        assert_eq!(after, Some(wait));
        let rejected: Result<(), Failure> = Err(Failure::reject("never"));
        assert!(matches!(
            rejected.into_disposition(),
            Disposition::Reject(_)
        ));
        let early: Result<(), Failure> = Err(Failure::postpone(wait, "not packed"));
        let Disposition::Postpone { after, reason } = early.into_disposition() else {
            panic!("not postponed")
        };
        let reason = reason.map(|reason| reason.chain());
        assert_eq!((after, reason.as_deref()), (wait, Some("not packed")));
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        let failure = Failure::from(Outer(parse_error()));
        assert_eq!(failure.chain(), "outer: invalid digit found in string");
    }
}
