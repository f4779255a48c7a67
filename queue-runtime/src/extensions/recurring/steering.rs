//! What operators do to a schedule, from any process of the storage.

use bytes::Bytes;
use queue_core::backend::{BackendExt as _, ConditionalPuts, PutIf};
use queue_core::clock::Timestamp;
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::last::{Last, LastTick};
use crate::service::QueueService;

/// The queue, which need not exist, that a put without a message names.
const NO_QUEUE: QueueName = QueueName::from_static("schedules");

impl QueueService {
    /// Restarts a schedule: replaces the recorded last tick by the current time. Returns false if the storage knows no
    /// schedule of this name.
    ///
    /// Use `reset_schedule` if a schedule waits because a clock was ahead when its last tick was recorded. Ticks after
    /// the reset are submitted by all processes within a minute; earlier ticks are not made up for. If the wall clock
    /// of this process is behind, ticks since the reset's time are submitted again, with the same ids. A paused schedule
    /// stays paused.
    ///
    /// A schedule with [a store](crate::recurring::Schedule::recorded_in) keeps its last tick in its process: restart
    /// the process instead.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = queue_runtime::QueueService::connect("memory:").await?;
    /// let is_known = service.reset_schedule("hourly report").await?;
    /// assert!(!is_known, "it was never started");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) on Azure; otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may have been reset.
    pub async fn reset_schedule(&self, name: &str) -> Result<bool> {
        let reset = |recorded: Result<Last>, now| {
            // What cannot be read begins anew as well.
            let paused = recorded.is_ok_and(|last| last.paused);
            let begun = LastTick::begin(now, None);
            Ok(LastTick { paused, ..begun })
        };
        self.steer(name, "reset a schedule", reset).await
    }

    /// Pauses a schedule in all processes: once this returns, no tick is submitted until
    /// [`resume_schedule`](Self::resume_schedule), also after restarts. Returns false if the storage knows no schedule of
    /// this name. [Runs](Self::run_schedule) that are asked for go on, and messages that were submitted are handled.
    ///
    /// Processes of releases before this method was added end the pause with their next tick.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::recurring::every;
    /// use queue_runtime::{Message, testing};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Report {}
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hour = Duration::from_secs(3600);
    /// let service = testing::service().await;
    /// let schedule = service.schedule("report", every(hour), |_| Report {}).start()?;
    /// # tokio::time::sleep(Duration::from_secs(1)).await;
    /// assert!(service.pause_schedule("report").await?);
    /// tokio::time::sleep(3 * hour).await;
    /// assert_eq!(service.submitted::<Report>().len(), 0);
    ///
    /// service.run_schedule("report").await?; // once, although it is paused
    /// tokio::time::sleep(Duration::from_secs(31)).await;
    /// assert_eq!(service.submitted::<Report>().len(), 1);
    ///
    /// service.resume_schedule("report").await?;
    /// tokio::time::sleep(hour).await;
    /// assert_eq!(service.submitted::<Report>().len(), 2);
    /// # schedule.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the storage records no ticks, as on Azure; [`ErrorKind::Corrupt`] if what is recorded
    /// cannot be read; otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may have been paused.
    pub async fn pause_schedule(&self, name: &str) -> Result<bool> {
        let pause = |recorded: Result<Last>, _| {
            let last = recorded?;
            Ok(LastTick {
                paused: true,
                ..*last
            })
        };
        self.steer(name, "paused a schedule", pause).await
    }

    /// Ends the pause of a schedule in all processes, within 30 seconds. The ticks of the pause are not made up for,
    /// whatever [`Missed`](crate::recurring::Missed) says: the schedule begins anew at the current time of this process. If its
    /// wall clock is behind, ticks since that time are submitted; if it is ahead, the schedule waits until then. Does nothing for
    /// a schedule that is not paused. Returns false if the storage knows no schedule of this name.
    ///
    /// # Errors
    /// The errors of [`pause_schedule`](Self::pause_schedule).
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may have been resumed.
    pub async fn resume_schedule(&self, name: &str) -> Result<bool> {
        let resume = |recorded: Result<Last>, now: Timestamp| {
            let last = recorded?;
            let tick = if last.paused {
                now.max(last.tick)
            } else {
                last.tick
            };
            Ok(LastTick {
                paused: false,
                tick,
                next: last.next.filter(|next| *next > tick),
                ..*last
            })
        };
        self.steer(name, "resumed a schedule", resume).await
    }

    /// Has a process that runs the schedule submit its message once more, now: within 30 seconds, also if the schedule is
    /// paused, and with the time of this call in place of a tick. The ticks stay as they are. If no process runs the
    /// schedule, the first one that starts it submits the message. Of several calls before that, one counts. Returns false
    /// if the storage knows no schedule of this name.
    ///
    /// With [`Overlap::Skip`](crate::recurring::Overlap::Skip), the run is left out while an earlier message is not settled. A
    /// [reset](Self::reset_schedule) leaves it out, and so does a tick of a process of a release before this method was added.
    ///
    /// # Errors
    /// The errors of [`pause_schedule`](Self::pause_schedule).
    ///
    /// # Cancel safety
    /// If the future is dropped, a run may have been asked for.
    pub async fn run_schedule(&self, name: &str) -> Result<bool> {
        let run = |recorded: Result<Last>, now| {
            let last = recorded?;
            let run = last.run.or(Some(now));
            Ok(LastTick { run, ..*last })
        };
        self.steer(name, "asked for a run of a schedule", run).await
    }

    /// Replaces what is recorded of a schedule, if anything is.
    async fn steer(
        &self,
        name: &str,
        what: &str,
        change: impl Fn(Result<Last>, Timestamp) -> Result<LastTick>,
    ) -> Result<bool> {
        let context = &*self.context;
        if context.backend.capabilities().conditional_puts == ConditionalPuts::Unsupported {
            let unsupported = Error::new(ErrorKind::Unsupported, Operation::Results);
            let detail = "this storage records no ticks; a schedule with `recorded_in` has its last tick in its process, \
                 which can be restarted without it";
            return Err(unsupported.with_detail(detail).unsent());
        }
        let now = context.clock.now();
        // No record is empty, so that the first swap only reads.
        let mut recorded = Bytes::new();
        let mut next = Last::from(LastTick::begin(now, None));
        loop {
            let swap = next.swap(name).in_place_of(recorded);
            match context.backend.put_if(&NO_QUEUE, None, &swap).await? {
                PutIf::Swapped(_) => {
                    tracing::info!(schedule = name, "{what}");
                    return Ok(true);
                }
                PutIf::Differs(None) => return Ok(false),
                // The answer to an earlier try may have been lost; or a process has just submitted a tick.
                PutIf::Differs(Some(current)) => {
                    next = change(Last::read(Some(current.clone())), now)?.into();
                    recorded = current;
                }
            }
        }
    }
}
