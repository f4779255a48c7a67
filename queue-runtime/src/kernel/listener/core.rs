use std::sync::Arc;

use queue_core::MessageId;
use queue_core::backend::QueueProperties;
use tokio::runtime::Handle;

use super::event::{Events, ListenerEvent, ListenerEventKind};
use super::info::ListenerCounters;
use super::phase::{ListenerPhase, Phase};
use crate::kernel::context::Context;
use crate::kernel::observe::{Measures, Outcome};
use crate::kernel::panic::log_caught;
use crate::kernel::receive::Consumer;
use crate::kernel::served::Serving;
use crate::kernel::settings::{Limits, Paused, read_in_time};

/// What the parts of a listener share, without knowledge of them.
pub(super) struct Core {
    pub(super) context: Arc<Context>,
    pub(super) consumer: Arc<Consumer>,
    /// The application's runtime, on which handlers and dequeue tasks run.
    pub(super) runtime: Handle,
    /// The claim to the queue for this kind of message.
    pub(super) serving: Serving,
    pub(super) phase: Phase,
    pub(super) counters: ListenerCounters,
    /// The queue's metrics.
    pub(super) measures: Arc<Measures>,
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

    /// Tells what happened: logs it, and publishes it. The panic of a subscriber of the log is caught.
    pub(super) fn tell(&self, kind: ListenerEventKind) {
        log_caught(|| kind.log(&self.consumer.queue));
        self.publish(|| kind);
    }

    /// Asks the storage for the approximate number of messages on the queue.
    pub(super) async fn measure_depth(&self) -> queue_core::Result<usize> {
        Ok(self.measure().await?.approximate_count)
    }

    /// Asks the storage for the properties of the queue, of which the depth is kept.
    pub(super) async fn measure(&self) -> queue_core::Result<QueueProperties> {
        let (queue, clock) = (&self.consumer.queue, &*self.context.clock);
        let properties = self.context.backend.properties(queue);
        let properties = read_in_time(clock, queue, properties).await?;
        let depth = properties.approximate_count;
        self.counters.measured(depth);
        // Unsampled, the metric would stay at this value.
        if self.measures.is_sampled() {
            self.measures.depth(Some(depth));
        }
        Ok(properties)
    }

    /// Returns the mark in the queue's metadata that pauses it for everybody, if it had one when it was last read.
    pub(super) fn queue_paused(&self) -> Option<Arc<Paused>> {
        self.context.settings.marks().of(&self.consumer.queue)
    }

    /// Returns the limits in the queue's metadata, as it was last read.
    pub(super) fn limits(&self) -> Limits {
        self.context.settings.limits(&self.consumer.queue)
    }

    /// Runs a job in the background until it ends or the listener stops. A job that panics starts again.
    pub(super) fn keep_running<F>(
        self: &Arc<Self>,
        name: &'static str,
        job: impl Fn(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let (core, clock) = (Arc::clone(self), Arc::clone(&self.context.clock));
        let run = move || {
            let (core, job) = (Arc::clone(&core), job(Arc::clone(&core)));
            async move {
                tokio::select! {
                    _ = core.phase.reached(ListenerPhase::Stopping) => {}
                    () = job => {}
                }
            }
        };
        self.context.background.keep_running(name, clock, run);
    }

    /// Stops the listener because the application's runtime dropped one of its tasks.
    pub(super) fn task_dropped(&self) {
        if self.phase.abort() {
            self.tell(ListenerEventKind::RuntimeGone);
        }
    }

    /// Counts and reports a message whose task panicked outside its handler.
    pub(super) fn message_panicked(&self, id: &MessageId) {
        self.counters.count(Outcome::Unsettled);
        self.tell(ListenerEventKind::MessageTaskPanicked { id: id.clone() });
    }
}
