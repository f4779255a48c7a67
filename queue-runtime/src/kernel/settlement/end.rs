use std::time::Duration;

use queue_core::envelope::PoisonReason;
use queue_core::{Disposition, Failure};

use super::classify::{Classifiers, OnError};
use crate::kernel::panic;
use crate::kernel::policy::RetryPolicy;

/// How a message ended. The application's code, which classifies errors and writes their texts, has been asked.
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
    /// Only a newer program can handle the message. Poison for this reason if none does in time.
    NewerProgram { reason: PoisonReason, error: String },
    /// The message was not handled, or its handler was stopped for a reason of ours.
    Released,
    /// The lease is lost.
    LeaseLost,
}

/// The delay before a retry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Delay {
    /// By the retry policy of the consumer.
    Usual,
    ByPolicy(RetryPolicy),
    Exactly(Duration),
}

impl End {
    /// Returns how a message ends whose handler returned this. Asks the classifiers, if that decides.
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

/// Returns the text of the application's error. Its `Display` may panic.
pub(crate) fn text(failure: &Failure) -> String {
    panic::catch(|| failure.chain())
        .unwrap_or_else(|panic| format!("the text of the error panicked: {panic}"))
}
