//! The task of a schedule.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::PutIf;
use queue_core::clock::Timestamp;
use queue_core::idempotency::{IdempotencyStore, WorkKey};
use queue_core::internal::{between, error_chain};
use queue_core::{Error, Message, MessageId, QueueName, RetryAdvice};
use tokio_util::sync::CancellationToken;

use super::due::{Missed, due};
use super::lead::{Lead, Moment, Verdict};
use super::record::Last;
use super::recurrence::Ticks;
use crate::context::Context;
use crate::idempotency::DEFAULT_RETENTION;
use crate::panic::{catch_async, log_caught};
use crate::policy::{jitter, outage_pause};
use crate::send::{Submit, SubmitError, SubmitProblem, SubmittedIf};

/// The longest sleep, after which the wall clock is looked at again: it may have been stepped. Shorter than a tick may be
/// late.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// What a schedule does, and when.
pub(super) struct Plan<M> {
    pub(super) name: String,
    pub(super) ticks: Arc<dyn Ticks>,
    pub(super) message: Arc<dyn Fn(Timestamp) -> M + Send + Sync>,
    pub(super) queue: QueueName,
    pub(super) missed: Missed,
    pub(super) store: Option<Arc<dyn IdempotencyStore>>,
}

/// Runs a schedule.
pub(super) struct Runner<M> {
    context: Arc<Context>,
    plan: Plan<M>,
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
    pub(super) fn new(context: Arc<Context>, plan: Plan<M>, stop: CancellationToken) -> Self {
        Self {
            context,
            plan,
            stop,
            last: None,
            lead: Lead::default(),
            in_time: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut failures = 0;
        let context = Arc::clone(&self.context);
        let clock = &context.clock;
        loop {
            let step = catch_async(self.step(&context)).await;
            let failed = match step {
                Ok(Ok(next)) => {
                    failures = 0;
                    if self.sleep(&**clock, until(next, clock.now())).await {
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
            let (schedule, queue, error) = (&self.plan.name, &self.plan.queue, failed.error);
            log_caught(|| {
                tracing::warn!(schedule, %queue, error, ?pause, "failed to submit a tick of a schedule; will retry");
            });
            if !self.sleep(&**clock, pause).await {
                return;
            }
        }
    }

    /// Returns whether the schedule goes on.
    async fn sleep(&self, clock: &dyn queue_core::Clock, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = clock.sleep(pause.min(LONGEST_SLEEP)) => true,
        }
    }

    /// Submits the ticks that are due, and returns the next one.
    async fn step(&mut self, context: &Arc<Context>) -> Result<Option<Timestamp>, Failed> {
        let is_recorded = self.plan.store.is_none();
        let mut last = match &self.last {
            // Another process, or a reset, may have replaced a record that is ahead.
            Some(last) if !(is_recorded && self.lead.is_ahead()) => last.clone(),
            _ => self.begin(context).await?,
        };
        loop {
            self.last = Some(last.clone());
            let now = context.clock.now();
            if let Some(begins) = self.look(&last, now) {
                last = self.replace(context, &last, begins).await?;
                continue;
            }
            let due = due(&*self.plan.ticks, last.tick, now, self.plan.missed);
            let Some(&tick) = due.first().filter(|_| !self.stop.is_cancelled()) else {
                return Ok(self.plan.ticks.next(last.tick.max(now)));
            };
            last = match &self.plan.store {
                None => self.swap(context, &last, tick).await?,
                Some(store) => self.record(context, store, tick).await?,
            };
        }
    }

    /// Looks whether the last tick is ahead of the clock, and says so. Returns the moment that takes its place if it must
    /// be replaced.
    fn look(&mut self, last: &Last, now: Timestamp) -> Option<Timestamp> {
        let monotonic = self.context.clock.monotonic();
        let moment = Moment {
            wall: now,
            monotonic,
        };
        let ahead = between(now, last.tick);
        let (schedule, last) = (&self.plan.name, last.tick);
        match self.lead.look(&*self.plan.ticks, last, moment) {
            Verdict::InTime => self.in_time = Some(last),
            Verdict::Wait => {}
            Verdict::Warn { is_far: false } => log_caught(|| {
                tracing::warn!(
                    schedule,
                    %last,
                    ?ahead,
                    "the last tick of a schedule is ahead of the clock; the schedule waits until then"
                );
            }),
            Verdict::Warn { is_far: true } => log_caught(|| {
                tracing::warn!(
                    schedule,
                    %last,
                    ?ahead,
                    "the last tick of a schedule is far ahead of the clock, which was or is wrong here or in another \
                     process; it is replaced once the clock has been steady for ten minutes"
                );
            }),
            // The ticks since the last one in time may have been missed, such as the one at which this was noticed.
            Verdict::Replace(begins) => {
                return Some(self.in_time.map_or(begins, |tick| tick.min(begins)));
            }
        }
        None
    }

    /// Records a moment in place of a last tick that is far ahead of the clock. Returns what is recorded then.
    async fn replace(
        &self,
        context: &Context,
        last: &Last,
        begins: Timestamp,
    ) -> Result<Last, Failed> {
        let next = Last::new(begins);
        if self.plan.store.is_none() {
            let swap = next.swap(&self.plan.name).in_place_of(last.value.clone());
            let put = context.backend.put_if(&self.plan.queue, None, &swap).await;
            match put.map_err(Failed::from)? {
                PutIf::Swapped(_) => {}
                PutIf::Differs(None) => return self.begin(context).await,
                PutIf::Differs(current) => return Ok(Last::read(current)?),
            }
        }
        let (schedule, last) = (&self.plan.name, last.tick);
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
    async fn begin(&self, context: &Context) -> Result<Last, Failed> {
        let began = Last::new(context.clock.now());
        if self.plan.store.is_some() {
            return Ok(began);
        }
        let swap = began.swap(&self.plan.name);
        let put = context.backend.put_if(&self.plan.queue, None, &swap).await;
        match put.map_err(Failed::from)? {
            PutIf::Swapped(_) => Ok(began),
            PutIf::Differs(current) => Ok(Last::read(current)?),
        }
    }

    /// Submits a tick, unless another process has changed what is recorded. Returns the last tick in either case.
    async fn swap(
        &self,
        context: &Arc<Context>,
        last: &Last,
        tick: Timestamp,
    ) -> Result<Last, Failed> {
        let next = Last::new(tick);
        let swap = next.swap(&self.plan.name).in_place_of(last.value.clone());
        let submit = self.plan.submit(context, tick)?;
        match submit.send_if(&swap).await.map_err(Failed::of_submit)? {
            SubmittedIf::Submitted(_) => Ok(next),
            // Its retention is over, or the storage is a new one.
            SubmittedIf::Differs(None) => self.begin(context).await,
            SubmittedIf::Differs(current) => Ok(Last::read(current)?),
        }
    }

    /// Submits a tick, unless it is recorded in the store.
    async fn record(
        &self,
        context: &Arc<Context>,
        store: &Arc<dyn IdempotencyStore>,
        tick: Timestamp,
    ) -> Result<Last, Failed> {
        let scope = format!("schedule ticks of {}", self.plan.name);
        let key = WorkKey::new(scope, tick.to_string());
        let submit = self.plan.submit(context, tick)?;
        let sent = submit.send_recorded(store, key, DEFAULT_RETENTION).await;
        sent.map_err(Failed::of_submit)?;
        Ok(Last::new(tick))
    }
}

impl<M: Message> Plan<M> {
    fn submit(&self, context: &Arc<Context>, tick: Timestamp) -> Result<Submit<M>, Failed> {
        let parent = MessageId::new(format!("schedule {}", self.name));
        let parent = parent.map_err(|invalid| Failed {
            retry: RetryAdvice::Permanent,
            error: invalid.to_string(),
        })?;
        let id = MessageId::derived(&parent, M::TYPE.kind(), &tick.to_string());
        let submit = Submit::new(
            Arc::clone(context),
            self.queue.clone(),
            (self.message)(tick),
        );
        Ok(submit.id(id.as_str()))
    }
}

impl Failed {
    fn of_submit<M: Message>(failed: SubmitError<M>) -> Self {
        let retry = match &failed.problem {
            SubmitProblem::Storage(error) => error.retry(),
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

/// Returns how long to sleep before the next tick, if there is one. One that has passed is due at once.
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
