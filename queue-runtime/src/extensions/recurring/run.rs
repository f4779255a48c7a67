//! The task of a schedule.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{BackendExt as _, PutIf, Swap};
use queue_core::clock::Timestamp;
use queue_core::idempotency::{ResultStore, WorkKey};
use queue_core::internal::{between, error_chain};
use queue_core::{Error, Message, MessageId, Result, RetryAdvice};
use tokio_util::sync::CancellationToken;

use super::due::{BothClocks, Lead, LeadVerdict, due};
use super::last::{Last, LastTick, key};
use super::records::records;
use super::recurrence::Ticks;
use super::schedule::Schedule;
use crate::extensions::idempotency::DEFAULT_RETENTION;
use crate::extensions::unique::SubmittedIf;
use crate::kernel::panic::{catch_async, log_caught};
use crate::kernel::policy::{jitter, outage_pause};
use crate::kernel::send::{Submit, SubmitError, SubmitErrorKind, UniqueKey};

/// The longest sleep, shorter than a tick may be late. The wall clock and the record are looked at after each sleep: the
/// clock may have been stepped, and somebody may have asked for a run.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Runs a schedule.
pub(super) struct Runner<M> {
    schedule: Schedule<M>,
    ticks: Arc<dyn Ticks>,
    stop: CancellationToken,
    /// `None` until what is recorded is known.
    last: Option<Last>,
    /// When that was last known to be recorded, on the monotonic clock.
    looked_at: Duration,
    lead: Lead,
    /// The last tick that was seen when it was not ahead of the clock.
    in_time: Option<Timestamp>,
}

/// What comes after the last tick.
enum Upcoming {
    /// The last tick is far ahead of the clock, and this moment must replace it.
    Begins(Timestamp),
    Due(Timestamp),
    /// Nothing is due before this tick.
    At(Option<Timestamp>),
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
            looked_at: Duration::ZERO,
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

    /// Submits what is due, and returns the next tick.
    async fn step(&mut self) -> Result<Option<Timestamp>, Failed> {
        let mut last = self.look_at_record().await?;
        loop {
            self.last = Some(last.clone());
            if self.stop.is_cancelled() {
                return Ok(None);
            }
            let next = match self.next_tick(&last) {
                Upcoming::Begins(begins) => {
                    last = self.replace(&last, begins).await?;
                    continue;
                }
                Upcoming::Due(tick) => {
                    let next = self.ticks.next(tick);
                    let next = LastTick {
                        tick,
                        next,
                        ..*last
                    };
                    last = match &self.schedule.store {
                        None => self.swap(&last, next, tick).await?,
                        Some(store) => self.record(store, next).await?,
                    };
                    continue;
                }
                Upcoming::At(next) => next,
            };
            // After the ticks, which go on if the message cannot be submitted at this time.
            let Some(asked_at) = last.run else {
                return Ok(next);
            };
            let without = LastTick { run: None, ..*last };
            last = self.swap(&last, without, asked_at).await?;
        }
    }

    /// Returns what comes after the last tick.
    fn next_tick(&mut self, last: &Last) -> Upcoming {
        if last.paused {
            // A time before the pause is none from which ticks may be made up for.
            self.in_time = None;
            return Upcoming::At(None);
        }
        let now = self.schedule.context.clock.now();
        if let Some(begins) = self.look(last, now) {
            return Upcoming::Begins(begins);
        }
        let due = due(&*self.ticks, last.tick, now, self.schedule.missed);
        match due.first() {
            Some(tick) => Upcoming::Due(*tick),
            None => Upcoming::At(self.ticks.next(last.tick.max(now))),
        }
    }

    /// Returns what is recorded, which a pause, a run that is asked for, a reset or another process may have changed.
    async fn look_at_record(&mut self) -> Result<Last, Failed> {
        let now = self.schedule.context.clock.monotonic();
        let is_old = now.saturating_sub(self.looked_at) >= LONGEST_SLEEP;
        let last = match &self.last {
            None => self.begin().await?,
            Some(last) if self.schedule.store.is_some() => last.clone(),
            Some(_) if self.lead.is_ahead() => self.begin().await?,
            Some(last) if is_old => self.steered(last).await?,
            Some(last) => return Ok(last.clone()),
        };
        self.looked_at = now;
        Ok(last)
    }

    /// Returns what is recorded by now, if it is anything that cannot wait until the next tick.
    async fn steered(&self, last: &Last) -> Result<Last, Failed> {
        let Ok(store) = records(&self.schedule.context) else {
            return self.begin().await;
        };
        let found = store.find(&key(&self.schedule.name)).await?;
        let recorded = self.recorded(found.and_then(|found| found.value)).await?;
        // A process whose clock is behind repeats ticks. They are made up for once, at the next tick.
        let is_behind = recorded.tick < last.tick && !recorded.paused && recorded.run.is_none();
        Ok(if is_behind { last.clone() } else { recorded })
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
        let next = Last::from(LastTick {
            tick: begins,
            next: self.ticks.next(begins),
            ..**last
        });
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
        let now = self.schedule.context.clock.now();
        let began = Last::from(LastTick::begin(now, self.ticks.next(now)));
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

    /// Submits a tick and records `next`, unless another process has changed what is recorded. Returns what is recorded
    /// afterwards.
    async fn swap(&mut self, last: &Last, next: LastTick, tick: Timestamp) -> Result<Last, Failed> {
        let schedule = &self.schedule;
        let next = Last::from(next);
        let swap = next.swap(&schedule.name).in_place_of(last.value.clone());
        let (submit, key) = self.submit(tick)?;
        let sent = submit.send_if(&swap, key).await;
        let current = match sent.map_err(Failed::of_submit)? {
            SubmittedIf::Submitted(_) => None,
            SubmittedIf::Differs(current) => Some(current),
            SubmittedIf::Held => {
                let schedule = &schedule.name;
                log_caught(|| {
                    tracing::info!(schedule, %tick, "skipped a tick of a schedule: the message before is not settled");
                });
                match self.put_if(&swap).await? {
                    PutIf::Swapped(_) => None,
                    PutIf::Differs(current) => Some(current),
                }
            }
        };
        self.looked_at = self.schedule.context.clock.monotonic();
        match current {
            None => Ok(next),
            Some(current) => self.recorded(current).await,
        }
    }

    /// Submits a tick, unless it is recorded in the store.
    async fn record(&self, store: &Arc<dyn ResultStore>, next: LastTick) -> Result<Last, Failed> {
        let scope = format!("schedule ticks of {}", self.schedule.name);
        let key = WorkKey::new(scope, next.tick.to_string());
        // Only messages whose ticks are recorded in the storage hold a key.
        let (submit, _) = self.submit(next.tick)?;
        let sent = submit.send_recorded(store, key, DEFAULT_RETENTION).await;
        sent.map_err(Failed::of_submit)?;
        Ok(next.into())
    }

    /// Returns the submission of a tick, and the key that its message holds until it is settled, if any.
    fn submit(&self, tick: Timestamp) -> Result<(Submit<M>, Option<UniqueKey>), Failed> {
        let schedule = &self.schedule;
        let parent = MessageId::new(format!("schedule {}", schedule.name));
        let parent = parent.map_err(|invalid| Failed {
            retry: RetryAdvice::Permanent,
            error: invalid.to_string(),
        })?;
        let id = MessageId::derived(&parent, M::TYPE.kind(), &tick.to_string());
        let (context, queue) = (Arc::clone(&schedule.context), schedule.queue.clone());
        let submit = Submit::new(context, queue, (schedule.message)(tick)).id(id.as_str());
        Ok(schedule.overlap.apply(&schedule.name, submit))
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
