//! What a listener does beside its messages, in the background, until it stops: it judges its objective by the ages of
//! messages when they end, reads depths for metrics, and sweeps its result stores.
//!
//! One listener of a service reads the depths of a queue, until it stops and another one takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::clock::Clock;
use queue_core::idempotency::ResultStore;
use queue_core::internal::{LockExt as _, between, error_chain};
use queue_core::{ErrorKind, QueueName};

use super::core::Core;
use super::event::ListenerEventKind;
use super::info::ObjectiveState;
use crate::kernel::context::Context;
use crate::kernel::policy::{
    Objective, ObjectiveChange, RESOLUTION, Settlement, Unfinished, Window, jitter, spread,
};
use crate::kernel::receive::{Consumer, Idempotency, Incoming};
use crate::kernel::settings::read_in_time;

/// The completions of the last minutes, and the messages in flight.
pub(super) struct Latency {
    clock: Arc<dyn Clock>,
    within: Duration,
    state: Mutex<Timings>,
}

struct Timings {
    window: Window,
    /// Messages by insertion, in milliseconds of the monotonic clock, which may have begun later.
    in_flight: BTreeMap<i64, usize>,
}

/// A message in flight.
pub(super) struct TimedMessage {
    latency: Arc<Latency>,
    inserted_at: i64,
}

impl Latency {
    pub(super) fn new(objective: Objective, clock: &Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock: Arc::clone(clock),
            within: objective.within,
            state: Mutex::new(Timings {
                window: Window::new(objective),
                in_flight: BTreeMap::new(),
            }),
        })
    }

    /// Begins to count a message that was received, whose age is the storage's to tell.
    pub(super) fn received(
        self: &Arc<Self>,
        context: &Context,
        incoming: &Incoming,
    ) -> TimedMessage {
        let age = between(incoming.meta.inserted_at, incoming.storage_now(context));
        let inserted_at = self.now_millis() - millis(age);
        *self.state.hold().in_flight.entry(inserted_at).or_default() += 1;
        TimedMessage {
            latency: Arc::clone(self),
            inserted_at,
        }
    }

    pub(super) fn current(&self) -> ObjectiveState {
        let state = self.state.hold();
        self.describe(&state, self.unfinished(&state))
    }

    fn judge(&self) -> (Option<ObjectiveChange>, ObjectiveState) {
        let mut state = self.state.hold();
        let unfinished = self.unfinished(&state);
        let change = state.window.judge(self.clock.monotonic(), unfinished);
        (change, self.describe(&state, unfinished))
    }

    fn describe(&self, state: &Timings, unfinished: Unfinished) -> ObjectiveState {
        let counts = state.window.counts(unfinished);
        ObjectiveState {
            is_broken: state.window.is_broken(),
            messages: counts.messages,
            late: counts.late,
            oldest: unfinished.oldest,
        }
    }

    fn unfinished(&self, state: &Timings) -> Unfinished {
        let now = self.now_millis();
        let age = |inserted_at: &i64| Duration::from_millis(now.abs_diff(*inserted_at));
        let in_flight = &state.in_flight;
        let late = in_flight
            .iter()
            .take_while(|(inserted_at, _)| age(inserted_at) > self.within);
        Unfinished {
            late: late.map(|(_, messages)| *messages).sum(),
            oldest: in_flight.keys().next().map(age),
        }
    }

    fn now_millis(&self) -> i64 {
        millis(self.clock.monotonic())
    }
}

fn millis(duration: Duration) -> i64 {
    // Half of the range, so that differences fit it.
    i64::try_from(duration.as_millis())
        .unwrap_or(i64::MAX)
        .min(i64::MAX / 2)
}

impl TimedMessage {
    /// Records how the message was settled, now.
    pub(super) fn settled(self, settlement: Settlement) {
        let latency = &self.latency;
        let age = latency.now_millis().abs_diff(self.inserted_at);
        let now = latency.clock.monotonic();
        let mut state = latency.state.hold();
        let age = Duration::from_millis(age);
        state.window.settled(now, age, settlement);
    }
}

impl Drop for TimedMessage {
    fn drop(&mut self) {
        let mut state = self.latency.state.hold();
        let in_flight = &mut state.in_flight;
        if let Some(messages) = in_flight.get_mut(&self.inserted_at) {
            *messages -= 1;
            if *messages == 0 {
                in_flight.remove(&self.inserted_at);
            }
        }
    }
}

/// Judges the objective from time to time until the listener stops.
pub(super) fn judge_objective(core: &Arc<Core>, latency: &Arc<Latency>) {
    let latency = Arc::clone(latency);
    core.keep_running("objective", move |core| judge(core, Arc::clone(&latency)));
}

async fn judge(core: Arc<Core>, latency: Arc<Latency>) {
    loop {
        core.context.clock.sleep(RESOLUTION).await;
        let (change, state) = latency.judge();
        match change {
            None => {}
            Some(ObjectiveChange::Broken) => core.tell(ListenerEventKind::ObjectiveBroken(state)),
            Some(ObjectiveChange::Kept) => core.tell(ListenerEventKind::ObjectiveKept(state)),
        }
    }
}

/// Reads the depths from time to time, if the service does that and the application has installed a recorder of
/// metrics, until the listener stops, after which the depths are not known.
pub(super) fn sample_depths<'a>(
    core: &'a Arc<Core>,
    consumers: impl Iterator<Item = &'a Arc<Consumer>>,
) {
    let Some(interval) = core.context.depth_interval else {
        return;
    };
    if !core.measures.is_recorded() {
        return;
    }
    let consumers = consumers.chain([&core.consumer]);
    let poison_queues: BTreeSet<_> = consumers.map(|consumer| consumer.poison_queue()).collect();
    let poison_queues: Vec<_> = poison_queues.into_iter().collect();
    core.keep_running("depths", move |core| {
        sample(core, interval, poison_queues.clone())
    });
}

async fn sample(core: Arc<Core>, interval: Duration, poison_queues: Vec<QueueName>) {
    let mut claim = None;
    // The first read comes soon, and not of all listeners at once.
    let mut pause = interval.mul_f64(jitter() / 10.0);
    loop {
        core.context.clock.sleep(pause).await;
        pause = spread(interval, jitter());
        claim = claim.or_else(|| core.measures.claim_sampling());
        if claim.is_none() {
            continue;
        }
        let depth = read_depth(&core, &core.consumer.queue).await.ok();
        depth.inspect(|depth| core.counters.measured(*depth));
        core.measures.depth(depth);
        let mut poison_depth = Some(0);
        for poison_queue in &poison_queues {
            let depth = match read_depth(&core, poison_queue).await {
                // The queue is created with its first message.
                Err(ErrorKind::QueueNotFound) => Some(0),
                depth => depth.ok(),
            };
            poison_depth = poison_depth.zip(depth).map(|(sum, depth)| sum + depth);
        }
        core.measures.poison_depth(poison_depth);
    }
}

async fn read_depth(core: &Core, queue: &QueueName) -> Result<usize, ErrorKind> {
    let properties = core.context.backend.properties(queue);
    match read_in_time(&*core.context.clock, queue, properties).await {
        Ok(properties) => Ok(properties.approximate_count),
        Err(error) => {
            if error.kind() != ErrorKind::QueueNotFound {
                let error = error_chain(&error);
                tracing::debug!(%queue, error, "failed to read the depth of a queue for metrics");
            }
            Err(error.kind())
        }
    }
}

/// The pause between two sweeps, of which a random half is taken off at most, so that the processes of a fleet do not
/// sweep at the same time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(20 * 60);
/// The pause between two sweeps if one did not remove everything.
const NEXT_SWEEP: Duration = Duration::from_secs(1);
/// The pause before the first sweep, so that programs that run for a short time sweep, too.
const FIRST_SWEEP: Duration = Duration::from_secs(10);

/// Sweeps each store of the listener until the listener stops.
pub(super) fn sweep_stores<'a>(
    core: &Arc<Core>,
    consumers: impl Iterator<Item = &'a Arc<Consumer>>,
) {
    let mut stores: Vec<Arc<dyn ResultStore>> = Vec::new();
    for consumer in consumers {
        if let Some(Idempotency { store, .. }) = &consumer.options.idempotency
            && !stores.iter().any(|other| Arc::ptr_eq(other, store))
        {
            stores.push(Arc::clone(store));
        }
    }
    for store in stores {
        core.keep_running("sweep", move |core| sweep(core, Arc::clone(&store)));
    }
}

async fn sweep(core: Arc<Core>, store: Arc<dyn ResultStore>) {
    let mut pause = FIRST_SWEEP;
    loop {
        let share = 0.5 + 0.5 * jitter();
        core.context.clock.sleep(pause.mul_f64(share)).await;
        pause = match store.sweep().await {
            Ok(swept) if swept.more => NEXT_SWEEP,
            Ok(_) => SWEEP_INTERVAL,
            Err(error) => {
                let (queue, error) = (&core.consumer.queue, error_chain(&error));
                tracing::warn!(%queue, error, "failed to sweep the result store; will retry");
                SWEEP_INTERVAL
            }
        };
    }
}
