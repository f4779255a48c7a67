use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_core::MessageId;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::breaker::Breaker;
use super::drain::Drain;
use super::event::{Events, ListenerEvent};
use super::info::{Counters, ListenerInfo};
use super::limit::Limit;
use super::phase::Phase;
use super::room::ByteLimit;
use super::run::Watched;
use super::runs::Runs;
use super::scaler::Scaler;
use super::tasks::Tasks;
use super::threads::HandlerThreads;
use super::throttle::Throttle;
use crate::context::Context;
use crate::notify::Wakeups;
use crate::panic::{CaughtPanic, log_caught};
use crate::policy::{IdlePolicy, receive_visibility};
use crate::receive::{Consumer, ErasedHandler, SettleProblem, Settled};
use crate::schedule::Schedule;
use crate::served::Serving;
use crate::settings::Settings;

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
    pub(super) tasks: Tasks,
    pub(super) scaler: Scaler,
    pub(super) runs: Runs,
    /// Whether the visibility timeout of receives follows the runs.
    pub(super) adaptive_visibility: bool,
    pub(super) breaker: Option<Breaker>,
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
    /// The running handlers, by the time of the watchdog's next check.
    pub(super) running: Schedule<Watched>,
    /// Whether the queue is known to be missing.
    pub(super) missing: AtomicBool,
    pub(super) counters: Counters,
    pub(super) events: Events,
}

impl Core {
    /// Publishes an event, which is created only if there has been a subscriber.
    pub(super) fn publish(&self, event: impl FnOnce() -> ListenerEvent) {
        self.events.publish(event);
    }

    /// Adapts the number of messages that may be in flight to the number of dequeue tasks and to throttling.
    pub(super) fn fit_limit(&self) {
        self.permits.set(|| {
            let tasks = self.tasks.state().wanted.max(1);
            let share = self.in_flight_per_task.saturating_mul(tasks);
            self.throttle.of(share.min(self.max_in_flight))
        });
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

    /// Gives back bytes in flight.
    pub(super) fn release_bytes(&self, bytes: usize) {
        if let Some(limit) = self.bytes.as_ref().filter(|_| bytes > 0) {
            limit.release(bytes);
        }
    }

    /// Asks the storage for the approximate number of messages on the queue.
    pub(super) async fn measure_depth(&self) -> queue_core::Result<u64> {
        let properties = self.context.backend.properties(&self.consumer.queue);
        let depth = properties.await?.approximate_count;
        self.counters.measured(depth);
        Ok(depth)
    }

    /// Returns the listener's current figures.
    pub(super) fn info(&self) -> ListenerInfo {
        let tasks = self.tasks.state();
        ListenerInfo {
            tasks: tasks.active,
            peak_tasks: tasks.peak,
            started_tasks: tasks.started,
            in_flight_limit: self.permits.current(),
            circuit: self.breaker.as_ref().map(Breaker::state),
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
        self.publish(|| ListenerEvent::RuntimeGone);
    }

    /// Reports a dequeue task that starts again after a pause.
    pub(super) fn task_panicked(&self, panic: CaughtPanic, after: Duration) {
        let queue = &self.consumer.queue;
        log_caught(
            || tracing::error!(%queue, %panic, ?after, "a dequeue task panicked; starting it again"),
        );
        self.publish(|| ListenerEvent::TaskPanicked { panic, after });
    }

    /// Counts and reports a message whose task panicked outside its handler.
    pub(super) fn message_panicked(&self, id: &MessageId) {
        self.counters.unsettled.fetch_add(1, Ordering::Relaxed);
        let queue = &self.consumer.queue;
        log_caught(
            || tracing::error!(%queue, %id, "the task of a message panicked; the message is left to its lease"),
        );
        self.publish(|| ListenerEvent::MessageTaskPanicked { id: id.clone() });
    }

    /// Counts and publishes how a message was settled.
    pub(super) fn report(
        &self,
        id: &MessageId,
        attempt: u32,
        settled: Result<Settled, SettleProblem>,
    ) {
        let (counters, queue) = (&self.counters, &self.consumer.queue);
        match settled {
            Ok(Settled::Completed) => {
                counters.completed.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Completed {
                    id: id.clone(),
                    attempt,
                });
            }
            Ok(Settled::Duplicate) => {
                counters.duplicates.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Duplicate { id: id.clone() });
            }
            Ok(Settled::Retried { after, error }) => {
                counters.retried.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Retried {
                    id: id.clone(),
                    attempt,
                    after,
                    error,
                });
            }
            Ok(Settled::Poisoned(reason)) => {
                counters.poisoned.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Poisoned {
                    id: id.clone(),
                    reason,
                    attempts: attempt,
                });
            }
            Ok(Settled::Released) => {
                counters.released.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Released { id: id.clone() });
            }
            Ok(Settled::Postponed { after }) => {
                counters.released.fetch_add(1, Ordering::Relaxed);
                self.publish(|| ListenerEvent::Postponed {
                    id: id.clone(),
                    after,
                });
            }
            Err(problem) => {
                counters.unsettled.fetch_add(1, Ordering::Relaxed);
                let error = queue_core::internal::error_chain(&problem);
                tracing::warn!(%queue, %id, error, "failed to settle a message");
                self.publish(|| ListenerEvent::NotSettled {
                    id: id.clone(),
                    problem,
                });
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.threads.close();
    }
}
