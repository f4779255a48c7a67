//! What a handler wants done with its message.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::encoder::Encoded;
use crate::message::{EncodeError, Message, MessageType};
use crate::text::error_chain;

/// What happens to a message after its handler returned.
#[derive(Debug)]
#[must_use = "a disposition takes effect only when the handler returns it"]
#[non_exhaustive]
pub enum Disposition {
    /// Acknowledge it and submit these, atomically where the backend can.
    Complete(Vec<FollowUp>),
    /// The attempt failed; try again after this delay, or after the retry policy's.
    Retry {
        /// The delay that the handler asks for.
        after: Option<Duration>,
        /// What went wrong.
        error: Failure,
    },
    /// The attempt failed and trying again is pointless: set the message aside.
    Reject(Failure),
}

/// Why an attempt failed, and what the handler advises.
///
/// `?` turns any error into one that is retried by policy. [`Failure::retry_after`] and
/// [`Failure::reject`] say otherwise:
///
/// ```
/// use queue_core::Failure;
///
/// fn parse(text: &str) -> Result<u32, Failure> {
///     text.parse().map_err(Failure::reject)
/// }
/// assert!(parse("seven").is_err());
/// ```
pub struct Failure {
    advice: Advice,
    error: Box<dyn StdError + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Advice {
    Retry(Option<Duration>),
    Reject,
}

/// A message to submit together with the acknowledgement of the one that caused it.
///
/// It inherits client id, request id and trace context, and its id is derived from its parent's, its
/// kind and its key (or its position), so that a repeated handler repeats it.
#[derive(Debug, Clone)]
pub struct FollowUp {
    message_type: MessageType,
    delay: Duration,
    encoded: Result<Encoded, EncodeError>,
}

/// Anything that a handler may return.
///
/// `()` completes. An `Ok` is what its value is; an `Err` is retried by policy unless it is a
/// [`Failure`] that says otherwise.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not a disposition",
    note = "a handler returns `()`, `Disposition`, or a `Result` of either whose error is an \
            `std::error::Error + Send + Sync` or a `Failure`"
)]
pub trait IntoDisposition {
    /// Turns what the handler returned into what is done.
    fn into_disposition(self) -> Disposition;
}

impl Disposition {
    /// Acknowledges the message.
    pub fn complete() -> Self {
        Self::Complete(Vec::new())
    }

    /// Has the message tried again when the retry policy says.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Failure::retry(error).into()
    }

    /// Has the message tried again after `delay`.
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Failure::retry_after(delay, error).into()
    }

    /// Sets the message aside at once.
    pub fn reject(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Failure::reject(error).into()
    }

    /// Submits `message` together with the acknowledgement. On a retry or a rejection it does
    /// nothing.
    ///
    /// A follow-up that cannot be encoded or is too large will be so again: the message that caused it
    /// is set aside as rejected.
    pub fn then<M: Message>(self, message: &M) -> Self {
        self.then_follow_up(FollowUp::new(message))
    }

    /// As [`then`](Self::then), with a follow-up that was made elsewhere.
    pub fn then_follow_up(mut self, follow_up: FollowUp) -> Self {
        if let Self::Complete(follow_ups) = &mut self {
            follow_ups.push(follow_up);
        }
        self
    }
}

impl Failure {
    /// Try again when the retry policy says.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            advice: Advice::Retry(None),
            error: error.into(),
        }
    }

    /// Try again after `delay`.
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            advice: Advice::Retry(Some(delay)),
            error: error.into(),
        }
    }

    /// Trying again is pointless: set the message aside.
    pub fn reject(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self {
            advice: Advice::Reject,
            error: error.into(),
        }
    }

    /// The error and its causes in one text, outermost first.
    #[must_use]
    pub fn chain(&self) -> String {
        error_chain(&*self.error)
    }
}

impl FollowUp {
    /// A follow-up that is visible at once.
    #[must_use]
    pub fn new<M: Message>(message: &M) -> Self {
        Self {
            message_type: M::TYPE,
            delay: Duration::ZERO,
            encoded: Encoded::of(message),
        }
    }

    /// Keeps the follow-up invisible for this long.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The follow-up's type.
    #[must_use]
    pub fn message_type(&self) -> &MessageType {
        &self.message_type
    }

    /// How long it stays invisible.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// The encoded message.
    ///
    /// # Errors
    /// [`EncodeError`] if the message could not be encoded.
    pub fn encoded(&self) -> Result<&Encoded, &EncodeError> {
        self.encoded.as_ref()
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
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("advice", &self.advice)
            .field("error", &self.error)
            .finish()
    }
}

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
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        let failure = Failure::from(Outer(parse_error()));
        assert_eq!(failure.chain(), "outer: invalid digit found in string");
    }
}
