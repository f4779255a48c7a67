//! The schedules that the storage knows, whether or not they run.

use std::sync::Arc;

use queue_core::backend::{ConditionalPuts, PageMark};
use queue_core::clock::Timestamp;
use queue_core::idempotency::{Forgotten, IdempotencyStore, RecordState, Recorded};
use queue_core::{Error, ErrorKind, Operation, Result};

use super::record::{Last, SCOPE, key};
use crate::kernel::context::Context;

/// A page of the schedules that a storage knows, from
/// [`QueueService::recorded_schedules`](crate::QueueService::recorded_schedules).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedSchedules {
    /// The schedules, sorted by name.
    pub schedules: Vec<RecordedSchedule>,
    /// The storage's time.
    pub now: Timestamp,
    /// Where the next page starts. `None` if there is none.
    pub next: Option<PageMark>,
}

/// A schedule that a storage knows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedSchedule {
    /// Its name.
    pub name: String,
    /// Its last tick, or when it began if it has not ticked since. [`ErrorKind::Corrupt`] if what is recorded cannot be
    /// read.
    pub last_tick: Result<Timestamp>,
}

/// Returns a page of the schedules whose ticks are recorded in the service's storage.
pub(crate) async fn recorded(
    context: &Context,
    from: Option<&PageMark>,
    max: u32,
) -> Result<RecordedSchedules> {
    let store = store(context)?;
    let page = store.list(Some(SCOPE), from, max).await?;
    let mut schedules = Vec::with_capacity(page.records.len());
    for listed in page.records {
        let found = match listed.state {
            RecordState::Damaged { .. } => Some(listed),
            // None if it was forgotten meanwhile.
            _ => store.look_up(&listed.key).await?,
        };
        schedules.extend(found.map(RecordedSchedule::of));
    }
    Ok(RecordedSchedules {
        schedules,
        now: page.now,
        next: page.next,
    })
}

/// Removes what is recorded of a schedule. Returns false if nothing is.
pub(crate) async fn forget(context: &Context, schedule: &str) -> Result<bool> {
    let forgotten = store(context)?.forget(&key(schedule)).await?;
    let removed = forgotten == Forgotten::Removed;
    if removed {
        tracing::info!(schedule, "forgot a schedule");
    }
    Ok(removed)
}

/// The store in which the storage records ticks.
fn store(context: &Context) -> Result<Arc<dyn IdempotencyStore>> {
    let records = match context.backend.capabilities().conditional_puts {
        ConditionalPuts::Unsupported => None,
        _ => context.backend.results(),
    };
    records.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, Operation::Idempotency)
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
                let corrupt = Error::new(ErrorKind::Corrupt, Operation::Idempotency);
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
