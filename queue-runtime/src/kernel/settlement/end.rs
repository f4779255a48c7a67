//! How a message ended, and how it was settled then.

use std::time::Duration;

use queue_core::envelope::PoisonReason;
use queue_core::{Disposition, Error, Failure};

use super::callbacks::{Classifiers, OnError};
use crate::kernel::observe::Outcome;
use crate::kernel::panic;
use crate::kernel::policy::RetryPolicy;

/// How a message ended, once the application's code has classified the error and written its text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// The handler succeeded, or its work was done before.
    Completed,
    /// The attempt failed.
    Failed {
        /// The text of the error and its causes.
        error: String,
        /// The application's error, if it returned one.
        failure: Option<Failure>,
        delay: Delay,
    },
    /// Handling the message again would be of no use, or is asked for by nobody.
    Unusable {
        reason: PoisonReason,
        error: Option<String>,
    },
    /// The message was received, and has no attempts left.
    OutOfAttempts {
        reason: PoisonReason,
        error: Option<String>,
    },
    /// The work cannot be done yet.
    Postponed {
        after: Duration,
        reason: Option<String>,
    },
    /// Only a newer program can handle the message. The message is poison for this `reason` if none does in time.
    NewerProgram { reason: PoisonReason, error: String },
    /// The message was not handled, or its handler was stopped for a reason of ours.
    Released,
    /// The lease is lost.
    LeaseLost,
}

/// The delay before a retry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Delay {
    /// The delay of the consumer's retry policy.
    Usual,
    ByPolicy(RetryPolicy),
    Exactly(Duration),
}

impl End {
    /// Returns how a message ends whose handler returned `disposition`. The classifiers decide on a retry without a
    /// delay.
    pub(crate) fn of(disposition: &Disposition, classifiers: &Classifiers) -> Self {
        match disposition {
            Disposition::Complete(_) => Self::Completed,
            Disposition::Retry {
                after: Some(after),
                error,
            } => Self::Failed {
                error: text(error),
                failure: Some(error.clone()),
                delay: Delay::Exactly(*after),
            },
            Disposition::Retry { after: None, error } => Self::of_error(error, classifiers),
            Disposition::Reject(error) => Self::rejected(text(error)),
            Disposition::Postpone { after, reason } => Self::Postponed {
                after: *after,
                reason: reason.as_ref().map(text),
            },
            other => Self::failed(format!(
                "the disposition {other:?} is unknown to this runtime"
            )),
        }
    }

    fn of_error(failure: &Failure, classifiers: &Classifiers) -> Self {
        let decided = classifiers.decide(failure);
        let error = text(failure);
        let delay = match decided {
            OnError::Retry => Delay::Usual,
            OnError::RetryBy(policy) => Delay::ByPolicy(policy),
            OnError::RetryAfter(after) => Delay::Exactly(after),
            OnError::Reject => return Self::rejected(error),
            OnError::Postpone(after) => {
                return Self::Postponed {
                    after,
                    reason: Some(error),
                };
            }
        };
        Self::Failed {
            error,
            failure: Some(failure.clone()),
            delay,
        }
    }

    /// A failed attempt, which is retried by the policy of the consumer.
    pub(crate) fn failed(error: String) -> Self {
        Self::Failed {
            error,
            failure: None,
            delay: Delay::Usual,
        }
    }

    pub(crate) fn undecodable(error: String) -> Self {
        Self::Unusable {
            reason: PoisonReason::Undecodable,
            error: Some(error),
        }
    }

    pub(crate) fn rejected(error: String) -> Self {
        Self::Unusable {
            reason: PoisonReason::Rejected,
            error: Some(error),
        }
    }
}

/// Returns the text of the application's error, whose `Display` may panic.
pub(crate) fn text(failure: &Failure) -> String {
    panic::catch(|| failure.chain())
        .unwrap_or_else(|panic| format!("the text of the error panicked: {panic}"))
}

/// How a received message was settled.
///
/// ```
/// use queue_runtime::{Message, testing};
/// use queue_runtime::receive::Settled;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = testing::service().await;
/// service.submit(Order { number: 7 }).await?;
/// let order = service.accept::<Order>().poison_threshold(1).await?.expect("just submitted");
/// match order.retry("the carrier is busy").await? {
///     Settled::Retried { after, error } => println!("next attempt in {after:?}: {error}"),
///     Settled::Poisoned(reason) => println!("moved to the poison queue: {reason}"),
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// The message was completed.
    Completed,
    /// The work of the message was done before, according to the result store. The recorded follow-ups were stored
    /// again, and the message was deleted, without running the handler.
    Duplicate,
    /// The attempt failed, and the message will be retried.
    Retried {
        /// The delay before the next attempt.
        after: Duration,
        /// The error that the handler returned, or what ended it.
        error: Failure,
    },
    /// The message was handed back without counting the attempt.
    Released,
    /// The message was put back without counting the attempt: as requested, or, being from a newer program, for a
    /// program that supports its version.
    Postponed {
        /// The delay before the message becomes visible again.
        after: Duration,
    },
    /// The message was moved to the poison queue.
    Poisoned(PoisonReason),
}

/// Why a message was not settled, or may not have been. The kind of a [`SettleError`](crate::receive::SettleError).
///
/// ```
/// # use queue_runtime::testing::{self, Fault};
/// # use queue_runtime::error::Operation;
/// use queue_runtime::Message;
/// use queue_runtime::receive::SettleErrorKind;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (service, faults) = testing::service_with_faults().await;
/// # service.submit(Order { number: 7 }).await?;
/// # let order = service.accept::<Order>().await?.expect("just submitted");
/// # faults.fail_next(1, Operation::Delete, Fault::LeaseLost(std::time::Duration::from_secs(30)));
/// let error = order.complete().await.unwrap_err();
/// match error.kind {
///     SettleErrorKind::LeaseLost(_) => println!("another consumer has the message"),
///     SettleErrorKind::Expired(_) => println!("the message has expired"),
///     SettleErrorKind::Unknown(_) => println!("the message may be delivered again"),
///     SettleErrorKind::NotDone(_) => println!("the message will be delivered again"),
///     _ => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SettleErrorKind {
    /// The lease has ended, and another consumer may have received the message. The settlement changed nothing. If the
    /// backend is not atomic, follow-ups may have been submitted.
    #[error("the lease was lost")]
    LeaseLost(#[source] Error),
    /// The message has expired. The settlement changed nothing. If the backend is not atomic, follow-ups may have been
    /// submitted.
    #[error("the message expired")]
    Expired(#[source] Error),
    /// The settlement may have been carried out.
    #[error("the outcome of the settlement is unknown")]
    Unknown(#[source] Error),
    /// The settlement changed nothing. The message becomes visible again when its lease ends. If the backend is not
    /// atomic, follow-ups may have been submitted.
    #[error("the message was not settled")]
    NotDone(#[source] Error),
}

queue_core::debug_as_text!(SettleErrorKind);

impl SettleErrorKind {
    /// Whether the message may have been settled.
    #[must_use]
    pub fn outcome(&self) -> queue_core::Outcome {
        match self {
            Self::Unknown(_) => queue_core::Outcome::Unknown,
            _ => queue_core::Outcome::NotDone,
        }
    }
}

/// Returns how a settlement ended, as metrics and spans say it.
pub(crate) fn outcome(settled: &Result<Settled, SettleErrorKind>) -> Outcome {
    match settled {
        Ok(Settled::Completed) => Outcome::Completed,
        Ok(Settled::Duplicate) => Outcome::Duplicate,
        Ok(Settled::Retried { .. }) => Outcome::Retried,
        Ok(Settled::Released) => Outcome::Released,
        Ok(Settled::Postponed { .. }) => Outcome::Postponed,
        Ok(Settled::Poisoned(_)) => Outcome::Poisoned,
        Err(_) => Outcome::Unsettled,
    }
}
