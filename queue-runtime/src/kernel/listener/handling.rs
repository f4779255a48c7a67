//! Running the handler of each message in flight.
//!
//! [`Handling`] owns the handler and the tasks that run it. Whoever receives messages [hands them over](Handling::handle);
//! each has a [`HandlerRun`](run::HandlerRun) of its own from then on, which decides who settles it. [`TaskPool`] decides
//! when the task of a message starts and ends: an idle one takes another message.
//!
//! | file | has authority over |
//! |---|---|
//! | `executor` | the message: it is admitted, its handler runs, and it is settled |
//! | `watchdog` | the handler timeout: it takes over the messages of cancelled handlers that do not react |
//! | `stall` | whether handlers hold up the application's runtime, which is told once |
//! | `run` | whether task or watchdog settles a message |
//! | `finish` | how a handler's end settles its message, and whether a failed attempt counts |
//! | `routes` | which handler a message has, and when a message may be handled whose type has limits |
//! | `prepare` | what a message has to have before its handler is called |
//! | `transacting` | when a handler's transaction may begin |

mod executor;
mod finish;
mod prepare;
mod routes;
mod run;
mod stall;
mod transacting;
mod watchdog;

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Mutex};
use std::thread::panicking;

use queue_core::internal::LockExt as _;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

use executor::Arrival;
pub(super) use routes::{Gate, Routes, TypedRoute};
use run::{Handlers, Watchlist};

use super::capacity::Room;
use super::core::Core;
use super::jobs::Latency;
use crate::kernel::panic::{catch, log_caught};
use crate::kernel::receive::Fetched;

/// What runs the handlers of a listener.
pub(super) struct Handling {
    handlers: Arc<Handlers>,
    pool: TaskPool<Arrival>,
}

impl Handling {
    /// Keeps up to `max_idle` tasks that have nothing to do.
    pub(super) fn new(
        routes: Routes,
        latency: Option<Arc<Latency>>,
        runtime: Handle,
        max_idle: usize,
    ) -> Self {
        Self {
            handlers: Arc::new(Handlers {
                routes,
                watchlist: Watchlist::default(),
                latency,
            }),
            pool: TaskPool::new(runtime, max_idle, executor::run),
        }
    }

    /// Has a task handle each message.
    pub(super) fn handle(&self, messages: impl Iterator<Item = (Fetched, Room)>) {
        let in_order = self.routes().keep_order();
        let arrival = |(message, room)| Arrival::new(message, room, &self.handlers, in_order);
        self.pool.work_on(messages.map(arrival).collect());
    }

    pub(super) fn routes(&self) -> &Routes {
        &self.handlers.routes
    }

    pub(super) fn latency(&self) -> Option<&Arc<Latency>> {
        self.handlers.latency.as_ref()
    }

    /// Enforces the handlers' timeouts until the listener has stopped.
    pub(super) async fn watch(&self, core: &Core) {
        watchdog::run(core, &self.handlers, || self.pool.close()).await;
    }

    /// Ends the tasks that have nothing to do.
    pub(super) fn end_idle(&self) {
        self.pool.end_idle();
    }
}

/// Tasks that work on items, each item in a task of its own. A task that has finished takes another item, because waking
/// a task costs less than starting one.
pub(super) struct TaskPool<T> {
    shared: Arc<PoolShared<T>>,
    start: Box<dyn Fn(PoolTask<T>) + Send + Sync>,
}

struct PoolShared<T> {
    state: Mutex<PoolState<T>>,
    /// A permit for each item that waits, and for each idle task that is to end.
    permits: Semaphore,
    /// The number of idle tasks that are kept.
    max_idle: usize,
}

struct PoolState<T> {
    /// The items that idle tasks will take.
    waiting: VecDeque<T>,
    /// The number of tasks without an item, at least as many as there are items that wait.
    idle: usize,
    is_runtime_gone: bool,
}

impl<T: Send + 'static> TaskPool<T> {
    /// Keeps up to `max_idle` idle tasks.
    pub(super) fn new<W, F>(runtime: Handle, max_idle: usize, work: W) -> Self
    where
        W: Fn(T) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            shared: Arc::new(PoolShared {
                state: Mutex::new(PoolState {
                    waiting: VecDeque::new(),
                    idle: 0,
                    is_runtime_gone: false,
                }),
                permits: Semaphore::new(0),
                max_idle,
            }),
            // In a box, because a task moves its future several times.
            start: Box::new(move |task| drop(runtime.spawn(Box::pin(task.run(work))))),
        }
    }

    /// Has a task work on each item. Items are dropped if the runtime has shut down.
    pub(super) fn work_on(&self, items: Vec<T>) {
        let count = items.len();
        let mut state = self.shared.state.hold();
        if state.is_runtime_gone {
            drop(state);
            return drop_each(items);
        }
        state.waiting.extend(items);
        let missing = state.waiting.len().saturating_sub(state.idle);
        state.idle += missing;
        drop(state);
        self.shared.permits.add_permits(count);
        for _ in 0..missing {
            (self.start)(PoolTask {
                shared: Arc::clone(&self.shared),
                activity: Activity::Idle,
            });
        }
    }
}

impl<T> TaskPool<T> {
    /// Ends the tasks that are idle now.
    pub(super) fn end_idle(&self) {
        let state = self.shared.state.hold();
        let surplus = state.idle.saturating_sub(state.waiting.len());
        drop(state);
        self.shared.permits.add_permits(surplus);
    }

    /// Ends each task as soon as it is idle and no item waits.
    pub(super) fn close(&self) {
        self.shared.permits.close();
    }
}

impl<T> Drop for TaskPool<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Drops items, each of which may panic.
fn drop_each<T>(items: impl IntoIterator<Item = T>) {
    for item in items {
        if let Err(panic) = catch(|| drop(item)) {
            log_caught(|| tracing::error!(%panic, "dropping a message panicked"));
        }
    }
}

/// A task of the pool.
struct PoolTask<T> {
    shared: Arc<PoolShared<T>>,
    activity: Activity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Idle,
    Working,
    Ended,
}

impl<T> PoolTask<T> {
    async fn run<F: Future<Output = ()>>(mut self, work: impl Fn(T) -> F) {
        while let Some(item) = self.next().await {
            self.activity = Activity::Working;
            work(item).await;
            if !self.becomes_idle() {
                break;
            }
            // What the work has woken may wait for this thread.
            if self.shared.permits.available_permits() > 0 {
                yield_now().await;
            }
        }
        self.activity = Activity::Ended;
    }

    /// Waits for an item. Returns `None` if the task is to end.
    async fn next(&self) -> Option<T> {
        // An error says that the pool is closed. What waits is still worked on.
        if let Ok(permit) = self.shared.permits.acquire().await {
            permit.forget();
        }
        let mut state = self.shared.state.hold();
        state.idle -= 1;
        state.waiting.pop_front()
    }

    /// Returns false if enough other tasks are idle.
    fn becomes_idle(&mut self) -> bool {
        let mut state = self.shared.state.hold();
        let stays = state.idle < state.waiting.len() + self.shared.max_idle;
        if stays {
            state.idle += 1;
            self.activity = Activity::Idle;
        }
        stays
    }
}

impl<T> Drop for PoolTask<T> {
    fn drop(&mut self) {
        match self.activity {
            Activity::Ended => return,
            // A panic of the work ends only its own task.
            Activity::Working if panicking() => return,
            Activity::Working | Activity::Idle => {}
        }
        // The runtime drops a task only when it shuts down, and then no task takes another item.
        let mut state = self.shared.state.hold();
        state.is_runtime_gone = true;
        let waiting = take(&mut state.waiting);
        drop(state);
        drop_each(waiting);
    }
}

#[cfg(test)]
mod tests;
