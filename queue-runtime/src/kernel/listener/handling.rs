//! Running the handler of each message in flight.
//!
//! [`Handling`] owns the handler and the tasks that run it. Whoever receives messages [hands them over](handle); each
//! has a [`Run`] of its own from then on, which decides who settles it.
//!
//! | file | has authority over |
//! |---|---|
//! | `executor` | the message: it is admitted, its handler runs, and it is settled |
//! | `task_pool` | when the task of a message starts and ends: an idle one takes another message |
//! | `watchdog` | the handler timeout: it takes over the messages of cancelled handlers that do not react |
//! | `run` | which of the two settles a message |
//! | `finish`, `attempt_counts` | how its end settles the message, and whether a failed attempt counts |
//! | `routes` | which handler a message has |
//! | `prepare` | what a message has to have before its handler is called |
//! | `gate` | when a message of a type may be handled whose type has limits |
//! | `transacting` | when a handler's transaction may begin |

mod attempt_counts;
mod executor;
mod finish;
mod gate;
mod prepare;
mod routes;
mod run;
mod task_pool;
mod transacting;
pub(super) mod watchdog;

use std::sync::Arc;

use tokio::runtime::Handle;

use executor::Arrival;
pub(super) use executor::handle;
pub(super) use gate::Gate;
pub(super) use routes::{NeedsThread, Route, Routes};
use run::Watchlist;
use task_pool::TaskPool;

/// What runs the handlers of a listener.
pub(super) struct Handling {
    pub(super) routes: Routes,
    pool: TaskPool<Arrival>,
    /// The running handlers, for the watchdog.
    watchlist: Arc<Watchlist>,
}

impl Handling {
    /// Keeps up to `max_idle` tasks that have nothing to do.
    pub(super) fn new(routes: Routes, runtime: Handle, max_idle: usize) -> Self {
        Self {
            routes,
            pool: TaskPool::new(runtime, max_idle, executor::run),
            watchlist: Arc::default(),
        }
    }

    /// Ends the tasks that have nothing to do.
    pub(super) fn end_idle(&self) {
        self.pool.end_idle();
    }
}
