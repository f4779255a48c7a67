//! The listeners of one service, which are shut down together, with its schedules.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::clock::{BoxFuture, Clock};
use queue_core::internal::LockExt as _;
use tokio::sync::watch;

use super::handle::{Listener, ListenerHandle, ShutdownReport, Stopping};
use super::info::Health;
use super::phase::ListenerPhase;
use crate::kernel::context::Context;

/// The result of shutting down a service, from [`QueueService::shutdown`](crate::QueueService::shutdown).
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::{Message, Received, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ship(_: Received<Order>) {}
/// let service = testing::service().await;
/// service.listener(ship).start()?;
///
/// let report = service.shutdown(Duration::from_secs(30)).await;
/// for listener in report.listeners.iter().filter(|listener| !listener.graceful) {
///     eprintln!("{}: {} messages handed back", listener.queue, listener.released);
/// }
/// # assert!(report.graceful);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct ServiceShutdown {
    /// Whether all listeners stopped [gracefully](ShutdownReport::graceful).
    pub graceful: bool,
    /// The report of each listener that had not stopped before the shutdown, in the order of their starts.
    pub listeners: Vec<ShutdownReport>,
    /// The names of the schedules that had not been stopped before the shutdown, in the order of their starts.
    pub schedules: Vec<String>,
}

impl ServiceShutdown {
    /// Returns the number of messages that were handed back without counting the attempt.
    #[must_use]
    pub fn released(&self) -> usize {
        self.listeners
            .iter()
            .map(|listener| listener.released)
            .sum()
    }
}

/// The listeners of one service.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    /// The listeners, in the order of their starts. Stopped listeners are removed now and then.
    listeners: Vec<Weak<Listener>>,
    /// Once there is a shutdown, no more listeners are started.
    shutdown: Option<ShuttingDown>,
}

/// A shutdown, in progress or completed.
#[derive(Clone)]
pub(crate) struct ShuttingDown {
    clock: Arc<dyn Clock>,
    /// The end of the grace period, on the monotonic clock, which is never put off.
    grace_over: Arc<watch::Sender<Duration>>,
    report: watch::Receiver<Option<ServiceShutdown>>,
}

impl Listeners {
    /// Adds a listener that is about to start. Returns false if the service was shut down, so that the listener must
    /// not start.
    pub(super) fn add(&self, listener: &Arc<Listener>) -> bool {
        let mut state = self.0.hold();
        if state.shutdown.is_some() {
            return false;
        }
        let listeners = &mut state.listeners;
        if listeners.len() == listeners.capacity() {
            listeners.retain(|listener| listener.strong_count() > 0);
        }
        listeners.push(Arc::downgrade(listener));
        true
    }

    /// Returns handles to the listeners that have not stopped, in the order of their starts.
    pub(crate) fn running(&self) -> Vec<ListenerHandle> {
        let handles = self.0.hold().handles();
        running(handles)
    }

    /// Returns whether the listeners that have not stopped can receive.
    pub(crate) fn health(&self, context: &Context) -> Health {
        let running = self.running();
        Health {
            storage: context.meter.broken().cloned(),
            payloads: context.attachments.error(),
            renewals: context.renewals.overdue(),
            listeners: running.iter().map(ListenerHandle::health).collect(),
        }
    }

    /// Stops all listeners and schedules, and waits for the handlers for up to `grace`. If a shutdown has begun before,
    /// takes part in it, and ends its grace period after `grace` if it would end later.
    ///
    /// `stop_schedules`, called when the shutdown begins, stops the schedules, and returns a future that waits for them
    /// and returns their names.
    ///
    /// # Cancel safety
    /// The shutdown goes on in the background.
    pub(crate) async fn shutdown(
        &self,
        context: &Arc<Context>,
        grace: Duration,
        stop_schedules: impl FnOnce(ShuttingDown) -> BoxFuture<'static, Vec<String>>,
    ) -> ServiceShutdown {
        let until = context.clock.monotonic().saturating_add(grace);
        let mut report = self.begin_shutdown(context, until, stop_schedules).report;
        let reported = report.wait_for(Option::is_some).await;
        let reported =
            reported.expect("the background runs as long as the context is borrowed here");
        reported.clone().expect("it was waited for")
    }

    fn begin_shutdown(
        &self,
        context: &Arc<Context>,
        until: Duration,
        stop_schedules: impl FnOnce(ShuttingDown) -> BoxFuture<'static, Vec<String>>,
    ) -> ShuttingDown {
        let mut state = self.0.hold();
        if let Some(begun) = &state.shutdown {
            begun.end_grace(until);
            return begun.clone();
        }
        let (reports, report) = watch::channel(None);
        let begun = ShuttingDown {
            clock: Arc::clone(&context.clock),
            grace_over: Arc::new(watch::Sender::new(until)),
            report,
        };
        state.shutdown = Some(begun.clone());
        let handles = state.handles();
        drop(state);
        let schedules = stop_schedules(begun.clone());
        let listeners = running(handles);
        let stopping: Vec<_> = listeners.iter().map(ListenerHandle::begin_stop).collect();
        let (shutdown, parts) = (begun.clone(), Arc::clone(&context.parts));
        context.background.spawn(async move {
            let finish = |one: Stopping| one.finish(shutdown.grace_over());
            let listeners = join_all(stopping.into_iter().map(finish));
            let (listeners, schedules) = tokio::join!(listeners, schedules);
            parts.give_back(None).await;
            reports.send_replace(Some(ServiceShutdown {
                graceful: listeners.iter().all(|listener| listener.graceful),
                listeners,
                schedules,
            }));
        });
        begun
    }
}

impl Registry {
    /// Returns handles to the listeners that have not stopped, or have a handle. The handles must be dropped after the
    /// lock: what a handler owns is dropped with the last handle, and may ask for the listeners.
    fn handles(&self) -> Vec<ListenerHandle> {
        let listeners = self.listeners.iter().filter_map(Weak::upgrade);
        listeners.map(ListenerHandle::new).collect()
    }
}

fn running(mut handles: Vec<ListenerHandle>) -> Vec<ListenerHandle> {
    handles.retain(|handle| handle.phase() < ListenerPhase::Stopped);
    handles
}

impl ShuttingDown {
    /// Ends the grace period at `until`, unless it ends before.
    fn end_grace(&self, until: Duration) {
        self.grace_over.send_if_modified(|current| {
            let sooner = until < *current;
            *current = until.min(*current);
            sooner
        });
    }

    /// Waits for the end of the grace period.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn grace_over(&self) {
        let mut until = self.grace_over.subscribe();
        loop {
            let current = *until.borrow_and_update();
            tokio::select! {
                () = self.clock.sleep_until(current) => return,
                changed = until.changed() => changed.expect("the sender is borrowed here"),
            }
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.running()).finish()
    }
}
