//! What the storage records of schedules, whether or not they run.

use std::sync::Arc;

use bytes::Bytes;
use queue_core::backend::{BackendExt as _, ConditionalPuts, PageMark, PutIf};
use queue_core::clock::Timestamp;
use queue_core::idempotency::{Forgotten, RecordState, Recorded, ResultStore};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::run::{Last, SCOPE, key};
use crate::kernel::context::Context;
use crate::service::QueueService;

/// The queue, which need not exist, that a put without a message names.
const NO_QUEUE: QueueName = QueueName::from_static("schedules");

/// A page of the schedules that a storage knows, from
/// [`QueueService::recorded_schedules`](crate::QueueService::recorded_schedules).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedSchedules {
    /// The schedules, sorted by name.
    pub schedules: Vec<RecordedSchedule>,
    /// The storage's time.
    pub now: Timestamp,
    /// Where the next page starts. `None` after the last page.
    pub next: Option<PageMark>,
}

/// A schedule that a storage knows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedSchedule {
    /// The name of the schedule.
    pub name: String,
    /// The last tick of the schedule, or the schedule's beginning if it has not ticked yet. [`ErrorKind::Corrupt`] if
    /// what is recorded cannot be read.
    pub last_tick: Result<Timestamp>,
}

impl QueueService {
    /// Restarts a schedule: replaces the recorded last tick by the current time. Returns false if the storage knows no
    /// schedule of this name.
    ///
    /// Use `reset_schedule` if a schedule waits because a clock was ahead when its last tick was recorded. Ticks after
    /// the reset are submitted by all processes within a minute; earlier ticks are not made up for. If the wall clock
    /// of this process is behind, ticks since the reset's time are submitted again, with the same ids.
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
        let context = &*self.context;
        if context.backend.capabilities().conditional_puts == ConditionalPuts::Unsupported {
            let unsupported = Error::new(ErrorKind::Unsupported, Operation::Results);
            let detail = "this storage cannot record ticks; to reset a schedule that uses `recorded_in`, restart its processes";
            return Err(unsupported.with_detail(detail).unsent());
        }
        // No record is empty, so that the first swap only reads.
        let mut recorded = Bytes::new();
        loop {
            let begins = Last::new(context.clock.now());
            let swap = begins.swap(name).in_place_of(recorded.clone());
            match context.backend.put_if(&NO_QUEUE, None, &swap).await? {
                PutIf::Swapped(_) => {
                    tracing::info!(schedule = name, "reset a schedule");
                    return Ok(true);
                }
                PutIf::Differs(None) => return Ok(false),
                // The answer to an earlier try may have been lost; or a process has just submitted a tick.
                PutIf::Differs(Some(current)) => recorded = current,
            }
        }
    }

    /// Returns up to `max` of the schedules whose ticks the storage records, whether or not they run anywhere, with
    /// their last ticks: the first page, or the page at `from`. A page holds at most
    /// [`MAX_RECORDS`](crate::idempotency::MAX_RECORDS) schedules; a page with fewer, or none, may not be the last.
    ///
    /// A record that cannot be read is reported in its place, as an error of its schedule. Schedules with a store of
    /// their own ([`recorded_in`](crate::recurring::Schedule::recorded_in)) are not listed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use queue_runtime::{Message, QueueService, recurring::every};
    /// # use serde::{Deserialize, Serialize};
    /// #
    /// # #[derive(Debug, Serialize, Deserialize, Message)]
    /// # struct Report {}
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = QueueService::connect("memory:").await?;
    /// let hourly = every(Duration::from_secs(3600));
    /// let schedule = service.schedule("hourly report", hourly, |_| Report {}).start()?;
    /// # while service.recorded_schedules(None, 1).await?.schedules.is_empty() {
    /// #     tokio::task::yield_now().await;
    /// # }
    ///
    /// let page = service.recorded_schedules(None, 100).await?;
    /// assert_eq!(page.schedules[0].name, "hourly report");
    /// assert!(page.schedules[0].last_tick.clone()? <= page.now);
    ///
    /// schedule.stop().await;
    /// assert!(service.forget_schedule("hourly report").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) on Azure and with shards on several storages, where no
    /// ticks are recorded, and if the backend's result store has no listing;
    /// [`ErrorKind::InvalidInput`](queue_core::ErrorKind::InvalidInput) for a mark that no page has returned; otherwise the
    /// backend's error.
    pub async fn recorded_schedules(
        &self,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedSchedules> {
        let store = store(&self.context)?;
        let page = store.list(Some(SCOPE), from, max).await?;
        let mut schedules = Vec::with_capacity(page.records.len());
        for listed in page.records {
            let found = match listed.state {
                RecordState::Damaged { .. } => Some(listed),
                // None if the schedule was forgotten meanwhile.
                _ => store.find(&listed.key).await?,
            };
            schedules.extend(found.map(RecordedSchedule::of));
        }
        Ok(RecordedSchedules {
            schedules,
            now: page.now,
            next: page.next,
        })
    }

    /// Removes what the storage has recorded of a schedule, such as one that no program starts any more. Returns false if
    /// nothing was recorded.
    ///
    /// A schedule of this name that is started later begins anew: earlier ticks are not made up for. A running schedule
    /// begins anew at its next tick, and submits nothing for that tick.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) as for
    /// [`recorded_schedules`](Self::recorded_schedules); otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may have been forgotten.
    pub async fn forget_schedule(&self, name: &str) -> Result<bool> {
        let forgotten = store(&self.context)?.forget(&key(name)).await?;
        let removed = forgotten == Forgotten::Removed;
        if removed {
            tracing::info!(schedule = name, "forgot a schedule");
        }
        Ok(removed)
    }
}

/// The store in which the storage records ticks.
fn store(context: &Context) -> Result<Arc<dyn ResultStore>> {
    let records = match context.backend.capabilities().conditional_puts {
        ConditionalPuts::Unsupported => None,
        _ => context.backend.results(),
    };
    records.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, Operation::Results)
            .with_detail(
                "this storage records no ticks; those of a schedule with `recorded_in` are in the store given there, in \
                 the scope `schedule ticks of NAME`",
            )
            .unsent()
    })
}

impl RecordedSchedule {
    fn of(recorded: Recorded) -> Self {
        let last_tick = match recorded.state {
            RecordState::Damaged { problem } => {
                let corrupt = Error::new(ErrorKind::Corrupt, Operation::Results);
                Err(corrupt
                    .with_detail(format!("the record of the schedule is damaged: {problem}")))
            }
            _ => Last::read(recorded.value).map(|last| last.tick),
        };
        Self {
            name: recorded.key.key().to_owned(),
            last_tick,
        }
    }
}
