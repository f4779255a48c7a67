//! The task of a schedule.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{BackendExt as _, PutIf, Swap};
use queue_core::clock::Timestamp;
use queue_core::idempotency::{ResultStore, WorkKey};
use queue_core::internal::{between, error_chain};
use queue_core::{Error, ErrorKind, Message, MessageId, Operation, Result, RetryAdvice};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::due::{BothClocks, Lead, LeadVerdict, due};
use super::recurrence::Ticks;
use super::schedule::Schedule;
use crate::extensions::idempotency::DEFAULT_RETENTION;
use crate::extensions::unique::SubmittedIf;
use crate::kernel::panic::{catch_async, log_caught};
use crate::kernel::policy::{jitter, outage_pause};
use crate::kernel::send::{Submit, SubmitError, SubmitErrorKind};

/// The longest sleep, shorter than a tick may be late. The wall clock is looked at after each sleep: it may have been
/// stepped.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// How long the record of a schedule's last tick is kept: longer than any pause between two ticks.
const RETENTION: Duration = Duration::from_secs(30 * 366 * 24 * 60 * 60);

/// The scope of the records of schedules.
pub(super) const SCOPE: &str = "schedule ticks";

/// Runs a schedule.
pub(super) struct Runner<M> {
    schedule: Schedule<M>,
    ticks: Arc<dyn Ticks>,
    stop: CancellationToken,
    /// `None` until what is recorded is known.
    last: Option<Last>,
    lead: Lead,
    /// The last tick that was seen when it was not ahead of the clock.
    in_time: Option<Timestamp>,
}

/// A failure to submit a tick.
struct Failed {
    retry: RetryAdvice,
    error: String,
}

impl<M: Message> Runner<M> {
    pub(super) fn new(
        schedule: Schedule<M>,
        ticks: Arc<dyn Ticks>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            schedule,
            ticks,
            stop,
            last: None,
            lead: Lead::default(),
            in_time: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let failed = match catch_async(self.step()).await {
                Ok(Ok(next)) => {
                    failures = 0;
                    let now = self.schedule.context.clock.now();
                    if self.sleep(until(next, now)).await {
                        continue;
                    }
                    return;
                }
                Ok(Err(failed)) => failed,
                Err(panic) => Failed {
                    retry: RetryAdvice::Temporary,
                    error: panic.to_string(),
                },
            };
            failures += 1;
            let pause = outage_pause(failed.retry, failures, jitter());
            let Schedule { name, queue, .. } = &self.schedule;
            let (schedule, error) = (name, failed.error);
            log_caught(|| {
                tracing::warn!(schedule, %queue, error, ?pause, "failed to submit a tick of a schedule; will retry");
            });
            if !self.sleep(pause).await {
                return;
            }
        }
    }

    /// Returns whether the schedule goes on.
    async fn sleep(&self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = self.schedule.context.clock.sleep(pause.min(LONGEST_SLEEP)) => true,
        }
    }

    /// Submits the ticks that are due, and returns the next one.
    async fn step(&mut self) -> Result<Option<Timestamp>, Failed> {
        let is_recorded = self.schedule.store.is_none();
        let mut last = match &self.last {
            // Another process, or a reset, may have replaced a record that is ahead.
            Some(last) if !(is_recorded && self.lead.is_ahead()) => last.clone(),
            _ => self.begin().await?,
        };
        loop {
            self.last = Some(last.clone());
            let now = self.schedule.context.clock.now();
            if let Some(begins) = self.look(&last, now) {
                last = self.replace(&last, begins).await?;
                continue;
            }
            let due = due(&*self.ticks, last.tick, now, self.schedule.missed);
            let Some(&tick) = due.first().filter(|_| !self.stop.is_cancelled()) else {
                return Ok(self.ticks.next(last.tick.max(now)));
            };
            last = match &self.schedule.store {
                None => self.swap(&last, tick).await?,
                Some(store) => self.record(store, tick).await?,
            };
        }
    }

    /// Looks whether the last tick is ahead of the clock, and says so. Returns the moment that must replace the tick,
    /// if any.
    fn look(&mut self, last: &Last, now: Timestamp) -> Option<Timestamp> {
        let monotonic = self.schedule.context.clock.monotonic();
        let moment = BothClocks {
            wall: now,
            monotonic,
        };
        let ahead = between(now, last.tick);
        let (schedule, last) = (&self.schedule.name, last.tick);
        match self.lead.look(&*self.ticks, last, moment) {
            LeadVerdict::InTime => self.in_time = Some(last),
            LeadVerdict::Wait => {}
            LeadVerdict::Warn { is_far: false } => log_caught(|| {
                tracing::warn!(
                    schedule,
                    %last,
                    ?ahead,
                    "the last tick of a schedule is ahead of the clock; the schedule waits until then"
                );
            }),
            LeadVerdict::Warn { is_far: true } => log_caught(|| {
                tracing::warn!(
                    schedule,
                    %last,
                    ?ahead,
                    "the last tick of a schedule is far ahead of the clock, which was or is wrong here or in another \
                     process; it is replaced once the clock has been steady for ten minutes"
                );
            }),
            // The ticks since the last one in time may have been missed, such as the one at which the lead was noticed.
            LeadVerdict::Replace(begins) => {
                return Some(self.in_time.map_or(begins, |tick| tick.min(begins)));
            }
        }
        None
    }

    /// Records a moment in place of a last tick that is far ahead of the clock. Returns what is recorded afterwards.
    async fn replace(&self, last: &Last, begins: Timestamp) -> Result<Last, Failed> {
        let next = Last::new(begins);
        if self.schedule.store.is_none() {
            let swap = next.swap(&self.schedule.name);
            let swap = swap.in_place_of(last.value.clone());
            if let PutIf::Differs(current) = self.put_if(&swap).await? {
                return self.recorded(current).await;
            }
        }
        let (schedule, last) = (&self.schedule.name, last.tick);
        log_caught(|| {
            tracing::warn!(
                schedule,
                %last,
                %begins,
                "replaced the last tick of a schedule, which was far ahead of the clock; the schedule goes on"
            );
        });
        Ok(next)
    }

    /// Returns the last tick that is recorded. If there is none, records that the schedule begins now.
    async fn begin(&self) -> Result<Last, Failed> {
        let began = Last::new(self.schedule.context.clock.now());
        if self.schedule.store.is_some() {
            return Ok(began);
        }
        match self.put_if(&began.swap(&self.schedule.name)).await? {
            PutIf::Swapped(_) => Ok(began),
            PutIf::Differs(current) => Ok(Last::read(current)?),
        }
    }

    async fn put_if(&self, swap: &Swap) -> Result<PutIf, Error> {
        let Schedule { context, queue, .. } = &self.schedule;
        context.backend.put_if(queue, None, swap).await
    }

    /// Returns the last tick, given what is recorded: nothing if its retention is over, or the storage is a new one.
    async fn recorded(&self, current: Option<Bytes>) -> Result<Last, Failed> {
        match current {
            None => self.begin().await,
            current => Ok(Last::read(current)?),
        }
    }

    /// Submits a tick, unless another process has changed what is recorded, and returns the last recorded tick.
    async fn swap(&self, last: &Last, tick: Timestamp) -> Result<Last, Failed> {
        let next = Last::new(tick);
        let swap = next.swap(&self.schedule.name);
        let swap = swap.in_place_of(last.value.clone());
        let sent = self.submit(tick)?.send_if(&swap).await;
        match sent.map_err(Failed::of_submit)? {
            SubmittedIf::Submitted(_) => Ok(next),
            SubmittedIf::Differs(current) => self.recorded(current).await,
        }
    }

    /// Submits a tick, unless it is recorded in the store.
    async fn record(&self, store: &Arc<dyn ResultStore>, tick: Timestamp) -> Result<Last, Failed> {
        let scope = format!("schedule ticks of {}", self.schedule.name);
        let key = WorkKey::new(scope, tick.to_string());
        let submit = self.submit(tick)?;
        let sent = submit.send_recorded(store, key, DEFAULT_RETENTION).await;
        sent.map_err(Failed::of_submit)?;
        Ok(Last::new(tick))
    }

    fn submit(&self, tick: Timestamp) -> Result<Submit<M>, Failed> {
        let schedule = &self.schedule;
        let parent = MessageId::new(format!("schedule {}", schedule.name));
        let parent = parent.map_err(|invalid| Failed {
            retry: RetryAdvice::Permanent,
            error: invalid.to_string(),
        })?;
        let id = MessageId::derived(&parent, M::TYPE.kind(), &tick.to_string());
        let (context, queue) = (Arc::clone(&schedule.context), schedule.queue.clone());
        Ok(Submit::new(context, queue, (schedule.message)(tick)).id(id.as_str()))
    }
}

impl Failed {
    fn of_submit<M: Message>(failed: SubmitError<M>) -> Self {
        let retry = match &failed.kind {
            SubmitErrorKind::Storage(error) => error.retry(),
            _ => RetryAdvice::Permanent,
        };
        Self {
            retry,
            error: error_chain(&failed),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            retry: error.retry(),
            error: error_chain(&error),
        }
    }
}

/// The last tick that was submitted.
#[derive(Debug, Clone)]
pub(super) struct Last {
    pub(super) tick: Timestamp,
    /// What is recorded of the tick.
    pub(super) value: Bytes,
}

/// What is recorded of the last tick.
#[derive(Serialize, Deserialize)]
struct RecordedTick {
    tick: Timestamp,
    /// A random number of the try, so that no two tries record the same.
    token: u64,
}

/// Returns the key under which a schedule is recorded.
pub(super) fn key(schedule: &str) -> WorkKey {
    WorkKey::new(SCOPE, schedule)
}

impl Last {
    pub(super) fn new(tick: Timestamp) -> Self {
        let token = rand::random();
        let record = serde_json::to_vec(&RecordedTick { tick, token });
        Self {
            tick,
            value: record.expect("a time and a number are JSON").into(),
        }
    }

    /// Returns the swap that records the tick for a schedule of which nothing is recorded.
    pub(super) fn swap(&self, schedule: &str) -> Swap {
        Swap::new(key(schedule), self.value.clone(), RETENTION)
    }

    pub(super) fn read(current: Option<Bytes>) -> Result<Self> {
        let record = current
            .as_deref()
            .map(serde_json::from_slice::<RecordedTick>);
        match (record, current) {
            (Some(Ok(record)), Some(value)) => Ok(Self {
                tick: record.tick,
                value,
            }),
            _ => {
                let corrupt = Error::new(ErrorKind::Corrupt, Operation::Results);
                Err(corrupt.with_detail("the record of the schedule cannot be read as a tick"))
            }
        }
    }
}

/// Returns how long to sleep before the next tick, if there is one. A tick that has passed is due at once.
fn until(next: Option<Timestamp>, now: Timestamp) -> Duration {
    let Some(next) = next else {
        return LONGEST_SLEEP;
    };
    let left = Duration::try_from(next.duration_since(now)).unwrap_or_default();
    // The wall clock may be a little behind the one that times the sleep.
    left.max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_passes_while_it_is_computed_is_due() {
        let now = Timestamp::UNIX_EPOCH;
        let hour = Duration::from_secs(60 * 60);
        assert_eq!(until(Some(now + hour), now), hour);
        for passed in [Duration::ZERO, Duration::from_micros(1), hour] {
            let sleep = until(Some(now), now + passed);
            assert_eq!(sleep, Duration::from_millis(1), "{passed:?} ago");
        }
        assert_eq!(until(None, now), LONGEST_SLEEP);
    }
}
