//! The listeners of one service, which are shut down together.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::clock::Clock;
use tokio::sync::watch;

use super::core::Core;
use super::error::StartError;
use super::health::{Health, ListenerHealth};
use super::phase::ListenerPhase;
use super::shutdown::{ShutdownReport, Stopping};
use crate::context::Context;

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
/// let orders = service.listener(ship).start()?;
///
/// let report = service.shutdown(Duration::from_secs(30)).await;
/// for listener in report.listeners.iter().filter(|listener| !listener.graceful) {
///     eprintln!("{}: {} messages handed back", listener.queue, listener.released);
/// }
/// # assert!(report.is_graceful());
/// # drop(orders);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServiceShutdown {
    /// The report of each listener that had not stopped before, in the order in which they were started.
    pub listeners: Vec<ShutdownReport>,
}

impl ServiceShutdown {
    /// Returns whether all listeners stopped [gracefully](ShutdownReport::graceful).
    #[must_use]
    pub fn is_graceful(&self) -> bool {
        self.listeners.iter().all(|listener| listener.graceful)
    }

    /// Returns the number of messages that were handed back without counting the attempt.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.listeners
            .iter()
            .map(|listener| listener.released)
            .sum()
    }
}

/// The listeners of one service.
pub(crate) struct Listeners(Mutex<State>);

enum State {
    Open(Vec<Weak<Core>>),
    /// No more are started.
    ShutDown(ShuttingDown),
}

/// A shutdown, in progress or completed.
#[derive(Clone)]
struct ShuttingDown {
    /// The end of the grace period, on the monotonic clock. It is never put off.
    grace_over: Arc<watch::Sender<Duration>>,
    report: watch::Receiver<Option<ServiceShutdown>>,
}

impl Default for Listeners {
    fn default() -> Self {
        Self(Mutex::new(State::Open(Vec::new())))
    }
}

impl Listeners {
    /// Adds a listener that is about to start.
    ///
    /// # Errors
    /// [`StartError::ShutDown`].
    pub(super) fn add(&self, core: &Arc<Core>) -> Result<(), StartError> {
        match &mut *self.lock() {
            State::Open(listeners) => {
                if listeners.len() == listeners.capacity() {
                    listeners.retain(|listener| listener.strong_count() > 0);
                }
                listeners.push(Arc::downgrade(core));
                Ok(())
            }
            State::ShutDown(_) => Err(StartError::ShutDown(core.consumer.queue.clone())),
        }
    }

    /// Returns whether the listeners that have not stopped can receive.
    pub(crate) fn health(&self) -> Health {
        let listeners = match &*self.lock() {
            State::Open(listeners) => listeners.iter().filter_map(Weak::upgrade).collect(),
            State::ShutDown(_) => Vec::new(),
        };
        let running = |core: &&Arc<Core>| core.phase.current() < ListenerPhase::Stopped;
        let listeners = listeners.iter().filter(running);
        Health {
            listeners: listeners.map(|core| ListenerHealth::of(core)).collect(),
        }
    }

    /// Stops all listeners, and waits for their handlers for up to `grace`. If that has begun before, takes part in it,
    /// and ends its grace period after `grace` if it would end later.
    ///
    /// # Cancel safety
    /// The shutdown goes on in the background.
    pub(crate) async fn shutdown(
        &self,
        context: &Arc<Context>,
        grace: Duration,
    ) -> ServiceShutdown {
        let until = context.clock.monotonic().saturating_add(grace);
        let mut report = self.begin_shutdown(context, until).report;
        let reported = report.wait_for(Option::is_some).await;
        let reported =
            reported.expect("the background runs as long as the context is borrowed here");
        reported.clone().expect("it was waited for")
    }

    fn begin_shutdown(&self, context: &Arc<Context>, until: Duration) -> ShuttingDown {
        let mut state = self.lock();
        let listeners = match &mut *state {
            State::ShutDown(begun) => {
                begun.end_grace(until);
                return begun.clone();
            }
            State::Open(listeners) => std::mem::take(listeners),
        };
        let (reports, report) = watch::channel(None);
        let begun = ShuttingDown {
            grace_over: Arc::new(watch::Sender::new(until)),
            report,
        };
        *state = State::ShutDown(begun.clone());
        drop(state);
        let running = listeners.iter().filter_map(Weak::upgrade);
        let running = running.filter(|core| core.phase.current() < ListenerPhase::Stopped);
        let stopping: Vec<_> = running.map(|core| Stopping::begin(&core)).collect();
        let (shutdown, clock) = (begun.clone(), Arc::clone(&context.clock));
        context.background.spawn(async move {
            let finish = |one: Stopping| one.finish(shutdown.grace_over(&*clock));
            let listeners = join_all(stopping.into_iter().map(finish)).await;
            reports.send_replace(Some(ServiceShutdown { listeners }));
        });
        begun
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShuttingDown {
    /// Ends the grace period then, unless it ends before.
    fn end_grace(&self, until: Duration) {
        self.grace_over.send_if_modified(|current| {
            let sooner = until < *current;
            *current = until.min(*current);
            sooner
        });
    }

    async fn grace_over(&self, clock: &dyn Clock) {
        let mut until = self.grace_over.subscribe();
        loop {
            let current = *until.borrow_and_update();
            tokio::select! {
                () = clock.sleep_until(current) => return,
                changed = until.changed() => changed.expect("the sender is borrowed here"),
            }
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.lock() {
            State::Open(listeners) => write!(f, "Open({})", listeners.len()),
            State::ShutDown(_) => f.write_str("ShutDown"),
        }
    }
}
