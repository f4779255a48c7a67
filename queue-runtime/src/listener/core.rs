use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use queue_core::internal::error_chain;
use queue_core::{Error, MessageId};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::capacity::Breaker;
use super::capacity::ByteLimit;
use super::capacity::HandlerThreads;
use super::capacity::Lane;
use super::capacity::Limit;
use super::capacity::{Throttle, is_throttled};
use super::event::{Events, ListenerEvent, ListenerEventKind};
use super::handling::Runs;
use super::info::{Counters, ListenerInfo};
use super::intake::Advice;
use super::intake::ReceiveError;
use super::intake::Tasks;
use super::intake::Workload;
use super::phase::Phase;
use super::phase::{Drain, DrainEnd};
use super::sighting::Sighting;
use crate::context::Context;
use crate::meter::TransactionCounts;
use crate::notify::Wakeups;
use crate::observe::Measures;
use crate::panic::{CaughtPanic, catch, log_caught};
use crate::policy::{
    ExponentialIdle, Idle, IdlePolicy, ScalePolicy, Throttled, jitter, receive_visibility,
};
use crate::receive::{Consumer, ErasedHandler, open};
use crate::served::Serving;
use crate::settings::{Settings, read_in_time};

/// The state that the parts of one listener share.
pub(super) struct Core {
    pub(super) context: Arc<Context>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) handler: ErasedHandler,
    pub(super) idle: Arc<dyn IdlePolicy>,
    /// The maximum number of messages per receive.
    pub(super) batch: u32,
    pub(super) max_in_flight: usize,
    /// The number of messages that may be in flight for each dequeue task.
    pub(super) in_flight_per_task: usize,
    /// One permit for each message that may be in flight.
    pub(super) permits: Limit,
    /// The bytes that may be in flight, if they are limited.
    pub(super) bytes: Option<ByteLimit>,
    /// The part in the room that it shares with other listeners, if it does.
    pub(super) lane: Option<Lane>,
    pub(super) tasks: Tasks,
    pub(super) scale: Arc<dyn ScalePolicy>,
    pub(super) workload: Workload,
    pub(super) advice: Option<Advice>,
    pub(super) runs: Runs,
    /// Whether the visibility timeout of receives follows the runs.
    pub(super) adaptive_visibility: bool,
    pub(super) breaker: Option<Arc<Breaker>>,
    pub(super) throttle: Throttle,
    /// For a listener that runs until its queue is empty.
    pub(super) drain: Option<Drain>,
    pub(super) threads: HandlerThreads,
    /// The application's runtime, on which handlers and dequeue tasks run.
    pub(super) runtime: Handle,
    pub(super) phase: Phase,
    pub(super) wakeups: Wakeups,
    /// The claim to the queue for this kind of message.
    pub(super) serving: Serving,
    /// Tracks dequeue tasks and unsettled messages. The listener has stopped once there are none.
    pub(super) tracker: TaskTracker,
    /// Filled once the queue exists and its metadata was read, which one dequeue task does for all.
    pub(super) opened: OnceCell<()>,
    pub(super) sighting: Sighting,
    pub(super) counters: Counters,
    /// The queue's metrics.
    pub(super) measures: Arc<Measures>,
    /// The storage transactions on the queue before the listener was started.
    pub(super) transactions_before: TransactionCounts,
    pub(super) events: Events,
}

impl Core {
    /// Publishes an event, which is created only if there has been a subscriber.
    pub(super) fn publish(&self, kind: impl FnOnce() -> ListenerEventKind) {
        self.events.publish(|| ListenerEvent {
            at: self.context.clock.now(),
            queue: self.consumer.queue.clone(),
            kind: kind(),
        });
    }

    /// Adapts the number of messages that may be in flight to the number of dequeue tasks and to throttling.
    pub(super) fn fit_limit(&self) {
        self.permits.set(|| {
            let tasks = self.tasks.state().wanted.max(1);
            let share = self.in_flight_per_task.saturating_mul(tasks);
            self.throttle.of(share.min(self.max_in_flight))
        });
    }

    /// Reports that the number of dequeue tasks has changed, if it has.
    pub(super) fn scaled(&self, from: usize, to: usize) {
        if from != to {
            tracing::debug!(queue = %self.consumer.queue, from, to, "scaled the dequeue tasks");
            self.publish(|| ListenerEventKind::Scaled { from, to });
        }
    }

    /// Reads the queue's metadata, and creates the queue if it is missing and the listener does that: once, in one of
    /// the tasks that call this.
    ///
    /// # Errors
    /// Those of [`open`].
    pub(super) async fn open(&self) -> queue_core::Result<()> {
        let open = || async { open(&self.context, &self.consumer).await.map(drop) };
        self.opened.get_or_try_init(open).await.copied()
    }

    /// Returns the visibility timeout of the next receive.
    pub(super) fn visibility(&self, settings: &Settings) -> Duration {
        let configured = settings.visibility;
        let adapts = self.adaptive_visibility && settings.may_adapt;
        let p99 = adapts.then(|| self.runs.p99()).flatten();
        let visibility = p99.map_or(configured, |p99| receive_visibility(p99, configured));
        self.counters.receives_for(visibility);
        visibility
    }

    /// Returns what the idle policy is told by a task that has found the queue empty `count` times in a row.
    pub(super) fn idleness(&self, count: u32) -> Idle {
        Idle {
            depth: self.counters.depth(),
            active_tasks: self.tasks.state().active,
            in_flight: self.counters.in_flight(),
            ..Idle::new(count, jitter())
        }
    }

    /// Asks the idle policy. If it panics, the default policy answers.
    pub(super) fn ask_idle<T>(&self, question: impl Fn(&dyn IdlePolicy) -> T) -> T {
        catch(|| question(&*self.idle)).unwrap_or_else(|panic| {
            let queue = &self.consumer.queue;
            tracing::error!(%queue, %panic, "the idle policy panicked; using the default");
            self.publish(|| ListenerEventKind::PolicyPanicked { panic });
            let idle_cap = self.context.backend.capabilities().idle_cap;
            question(&ExponentialIdle::up_to(idle_cap))
        })
    }

    /// Gives back bytes in flight.
    pub(super) fn release_bytes(&self, bytes: usize) {
        if let Some(limit) = self.bytes.as_ref().filter(|_| bytes > 0) {
            limit.release(bytes);
        }
    }

    /// Asks the storage for the approximate number of messages on the queue.
    pub(super) async fn measure_depth(&self) -> queue_core::Result<u64> {
        let (queue, clock) = (&self.consumer.queue, &*self.context.clock);
        let properties = self.context.backend.properties(queue);
        let properties = read_in_time(clock, queue, properties).await?;
        let depth = properties.approximate_count;
        self.counters.measured(depth);
        // The metric would stay at this value.
        if self.measures.is_sampled() {
            self.measures.depth(Some(depth));
        }
        Ok(depth)
    }

    /// Returns the storage transactions on the queue since the listener was started.
    fn transactions(&self) -> TransactionCounts {
        let now = self.context.meter.of(&self.consumer.queue);
        now.since(&self.transactions_before)
    }

    /// Returns the listener's current figures.
    pub(super) fn info(&self) -> ListenerInfo {
        let tasks = self.tasks.state();
        ListenerInfo {
            tasks: tasks.active,
            peak_tasks: tasks.peak,
            started_tasks: tasks.started,
            in_flight_limit: self.permits.current(),
            circuit: self.breaker.as_ref().map(|breaker| breaker.state()),
            transactions: self.transactions(),
            wanted_instances: self.advice.as_ref().map(Advice::wanted),
            failure: self.counters.receiving.failure(&*self.context.clock),
            ..self.counters.snapshot()
        }
    }

    /// Stops receiving. Messages in flight are still handled.
    pub(super) fn stop(&self) {
        self.phase.stop();
        self.tracker.close();
    }

    /// Stops receiving and hands back the messages in flight. Returns false if that had already begun.
    pub(super) fn abort(&self) -> bool {
        let began = self.phase.abort();
        self.tracker.close();
        began
    }

    /// Stops the listener because the application's runtime dropped one of its tasks.
    pub(super) fn task_dropped(&self) {
        if !self.abort() {
            return;
        }
        let queue = &self.consumer.queue;
        log_caught(|| tracing::error!(%queue, "stopping a listener: its runtime has shut down"));
        self.publish(|| ListenerEventKind::RuntimeGone);
    }

    /// Reports a dequeue task that starts again after a pause.
    pub(super) fn task_panicked(&self, panic: CaughtPanic, after: Duration) {
        let queue = &self.consumer.queue;
        log_caught(
            || tracing::error!(%queue, %panic, ?after, "a dequeue task panicked; starting it again"),
        );
        self.publish(|| ListenerEventKind::TaskPanicked { panic, after });
    }

    /// Counts and reports a message whose task panicked outside its handler.
    pub(super) fn message_panicked(&self, id: &MessageId) {
        self.counters.unsettled.fetch_add(1, Ordering::Relaxed);
        let queue = &self.consumer.queue;
        log_caught(
            || tracing::error!(%queue, %id, "the task of a message panicked; the message is left to its lease"),
        );
        self.publish(|| ListenerEventKind::MessageTaskPanicked { id: id.clone() });
    }

    /// Records why no message could be received.
    pub(super) fn receive_failed(&self, error: ReceiveError) {
        let clock = &*self.context.clock;
        self.counters.receiving.failed(clock, error);
    }

    /// Records a receive and its error, if it failed, and adapts the number of messages that may be in flight if the
    /// storage throttles.
    pub(super) fn observe_receive(&self, error: Option<&Error>) {
        if error.is_some_and(is_throttled) {
            self.workload.throttled();
        }
        let Some(result) = self.throttle.observe(error, &*self.context.clock) else {
            return;
        };
        self.fit_limit();
        let queue = &self.consumer.queue;
        let in_flight_limit = self.permits.current();
        if result != Throttled::Again {
            tracing::warn!(%queue, in_flight_limit, "the storage throttles; fewer messages are in flight for now");
            self.publish(|| ListenerEventKind::Throttled { in_flight_limit });
        }
        if let Throttled::Persistent(lasted) = result {
            tracing::error!(%queue, ?lasted, "the storage throttles persistently; distribute the messages over several queues");
            self.publish(|| ListenerEventKind::ThrottledPersistently { lasted });
        }
    }

    /// Stops the listener if it runs until its queue is empty, and that is so. To be called after a receive found
    /// no visible message.
    pub(super) async fn stop_if_empty(&self) {
        // The messages in flight are still on the queue, and their handlers may submit others.
        if self.drain.is_none() || self.counters.in_flight() > 0 {
            return;
        }
        if self.is_empty().await {
            self.stop_if_draining(DrainEnd::Empty);
        }
    }

    /// Returns whether the queue is known to have no messages, invisible ones included.
    pub(super) async fn is_empty(&self) -> bool {
        match self.measure_depth().await {
            Ok(depth) => depth == 0,
            Err(error) => {
                let (queue, error) = (&self.consumer.queue, error_chain(&error));
                tracing::warn!(%queue, error, "failed to find out whether the queue is empty; polling it");
                false
            }
        }
    }

    /// Stops the listener if it runs until its queue is empty.
    pub(super) fn stop_if_draining(&self, end: DrainEnd) {
        if let Some(drain) = &self.drain {
            drain.end(end);
            self.stop();
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.threads.close();
    }
}
