//! What the storage records of schedules, whether or not they run.

use std::sync::Arc;

use queue_core::backend::{ConditionalPuts, PageMark};
use queue_core::clock::Timestamp;
use queue_core::idempotency::{Forgotten, RecordState, Recorded, ResultStore};
use queue_core::{Error, ErrorKind, Operation, Result};

use super::last::{Last, SCOPE, key};
use crate::kernel::context::Context;
use crate::service::QueueService;

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
    /// The next tick, as far as a process that runs the schedule has recorded it. While the schedule is paused, this tick
    /// is not submitted.
    pub next_tick: Option<Timestamp>,
    /// Whether the schedule is [paused](crate::QueueService::pause_schedule).
    pub is_paused: bool,
    /// Since when a [run](crate::QueueService::run_schedule) is asked for that no process has submitted yet.
    pub run_asked_at: Option<Timestamp>,
}

impl QueueService {
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
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) on Azure and with shards on several storages, where
    /// no ticks are recorded, and if the backend's result store has no listing;
    /// [`ErrorKind::InvalidInput`](queue_core::ErrorKind::InvalidInput) for a mark that no page has returned; otherwise the
    /// backend's error.
    pub async fn recorded_schedules(
        &self,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedSchedules> {
        let store = records(&self.context)?;
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
    /// begins anew within 30 seconds, or at its next tick if that is sooner, and then submits nothing for that tick.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](queue_core::ErrorKind::Unsupported) as for
    /// [`recorded_schedules`](Self::recorded_schedules); otherwise the backend's error.
    ///
    /// # Cancel safety
    /// If the future is dropped, the schedule may have been forgotten.
    pub async fn forget_schedule(&self, name: &str) -> Result<bool> {
        let forgotten = records(&self.context)?.forget(&key(name)).await?;
        let removed = forgotten == Forgotten::Removed;
        if removed {
            tracing::info!(schedule = name, "forgot a schedule");
        }
        Ok(removed)
    }
}

/// The store in which the storage records ticks.
pub(super) fn records(context: &Context) -> Result<Arc<dyn ResultStore>> {
    let records = match context.backend.capabilities().conditional_puts {
        ConditionalPuts::Unsupported => None,
        _ => context.backend.results(),
    };
    records.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, Operation::Results)
            .with_detail(
                "this storage records no ticks; those of a schedule are in the store of its `recorded_in`, or of the \
                 service's `results_in`, in the scope `schedule ticks of NAME`",
            )
            .unsent()
    })
}

impl RecordedSchedule {
    fn of(recorded: Recorded) -> Self {
        let last = match recorded.state {
            RecordState::Damaged { problem } => {
                let corrupt = Error::new(ErrorKind::Corrupt, Operation::Results);
                Err(corrupt
                    .with_detail(format!("the record of the schedule is damaged: {problem}")))
            }
            _ => Last::read(recorded.value),
        };
        let known = last.as_ref().ok();
        Self {
            name: recorded.key.key().to_owned(),
            next_tick: known.and_then(|last| last.next),
            is_paused: known.is_some_and(|last| last.paused),
            run_asked_at: known.and_then(|last| last.run),
            last_tick: last.map(|last| last.tick),
        }
    }
}
