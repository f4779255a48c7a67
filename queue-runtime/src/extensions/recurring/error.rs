use std::time::Duration;

use super::limits::{LONGEST, MAX_MISSED, SHORTEST};

/// Why a [`Recurrence`](super::Recurrence) is invalid.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{InvalidRecurrence, every};
///
/// let too_often = every(Duration::from_millis(10));
/// let invalid = too_often.next_after("2026-03-01T12:00:00Z".parse()?).unwrap_err();
/// assert_eq!(invalid, InvalidRecurrence::Interval(Duration::from_millis(10)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRecurrence {
    /// The interval is too short or too long.
    #[error("the interval of {0:?} is not within {SHORTEST:?} to {LONGEST:?}")]
    Interval(Duration),
    /// The cron expression cannot be parsed, or never occurs.
    #[error("the cron expression `{expression}` is invalid: {problem}")]
    Cron {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The time zone is not in the IANA database that the program reads.
    #[error("the time zone `{name}` is unknown: {problem}")]
    TimeZone {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no tick after now, for example because a cron expression names a year in the past.
    #[error("it has no tick in the future")]
    Over,
}

queue_core::debug_as_text!(InvalidRecurrence);

/// An error of starting a [`Schedule`](super::Schedule).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::recurring::{ScheduleError, every};
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Report {}
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let service = testing::service().await;
/// let schedule = service.schedule("report", every(Duration::from_millis(10)), |_| Report {});
/// let error = schedule.start().unwrap_err();
/// assert!(matches!(error, ScheduleError::Recurrence { .. }));
/// assert_eq!(
///     error.to_string(),
///     "failed to start the schedule `report`: the interval of 10ms is not within 1s to 31622400s"
/// );
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The name is empty, too long or contains control characters.
    #[error(
        "failed to start the schedule {0:?}: its name must have 1 to 128 bytes and no control characters"
    )]
    Name(String),
    /// The recurrence is invalid.
    #[error("failed to start the schedule `{name}`: {invalid}")]
    Recurrence {
        /// The schedule's name.
        name: String,
        /// What is wrong.
        invalid: InvalidRecurrence,
    },
    /// The limit of missed ticks is invalid.
    #[error(
        "failed to start the schedule `{name}`: the limit of {limit} missed ticks is not within 1 to {MAX_MISSED}"
    )]
    Limit {
        /// The schedule's name.
        name: String,
        /// The limit.
        limit: u32,
    },
    /// The storage cannot record ticks.
    #[error(
        "failed to start the schedule `{0}`: its storage cannot record a tick with its message; give a store by `recorded_in`"
    )]
    Unsupported(String),
    /// A schedule of this name runs on the service. The second one would never submit a tick, because the storage knows
    /// schedules by their names.
    #[error(
        "failed to start the schedule `{0}`: a schedule of this name runs on this service; stop it first, or name this one differently"
    )]
    Runs(String),
    /// The service was [shut down](crate::QueueService::shutdown), so it starts no more schedules.
    #[error("failed to start the schedule `{0}`: the service was shut down")]
    ShutDown(String),
    /// There is no current Tokio runtime, on which the schedule would run.
    #[error("failed to start a schedule outside a Tokio runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// The current Tokio runtime has no timer.
    #[error(
        "failed to start a schedule on a Tokio runtime without a timer; build it with `enable_all()`"
    )]
    NoTimer,
}

queue_core::debug_as_text!(ScheduleError);
