//! The listener: dequeue tasks that feed a handler.
//!
//! ```text
//!        application's runtime                               background
//! dequeue (n tasks) ── receive ──► executor (n messages, each in a task)
//!      ▲                               │ ▲                      ▲
//!      │                               ▼ │ disposition          │ tells to stop,
//!      └── room in flight ◄──── finish   handler                │ takes over
//!                                 │                          watchdog
//!                                 └──► retry / poison / complete
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `phase` | whether the listener receives or stops: [`ListenerHandle`] decides, or a task that is dropped; the watchdog finds that all is settled |
//! | `dequeue` | when to receive, and how many messages: never more than may be in flight |
//! | `tasks` | how many dequeue tasks run, and so how many messages may be in flight |
//! | `workers` | when a dequeue task starts |
//! | `breaker` | whether only probes are received |
//! | `attempt_counts` | which failed attempts count while it is open |
//! | `throttle` | how much of the room is used while the storage throttles |
//! | `drain` | when the queue of a listener that runs until then is empty |
//! | `standby` | whether no task polls at all, and until when |
//! | `scaler` | when to ask the scale policy how many that should be |
//! | `advice` | how many instances of the program are wanted |
//! | `task_pool` | when the task of a message starts and ends: an idle one takes another message |
//! | `executor` | the message: its handler and its settlement |
//! | `watchdog` | the handler timeout: it takes over the messages of cancelled handlers that do not react |
//! | `sampling` | when the depths of the queue and its poison queue are read for metrics |
//! | `sweeping` | when old results of an idempotency store are removed |
//! | `run` | which of the two settles a message |
//! | `room` | when a message stops counting against `max_in_flight` |
//! | `shared_room` | which of several listeners that share room gets what becomes free |
//! | `receiving` | whether receives fail, since when and why |
//! | `shutdown`, `listeners` | which listeners run; how long handlers may finish when a listener, or all of a service, stop |
//!
//! Dequeue tasks and handlers run on the application's runtime. The watchdog runs in the background with
//! the renewals, so that a blocked runtime neither loses leases nor hides failed attempts.

mod advice;
mod attempt_counts;
mod bounds;
mod breaker;
mod builder;
mod bytes;
mod core;
mod dequeue;
mod drain;
mod error;
mod event;
mod executor;
mod finish;
mod handle;
mod health;
mod info;
mod lanes;
mod limit;
mod listeners;
mod phase;
mod presence;
mod processor;
mod receiving;
mod room;
mod run;
mod runs;
mod sampling;
mod scaler;
mod shared_room;
mod shutdown;
mod standby;
mod start;
mod sweeping;
mod task_pool;
mod tasks;
mod threads;
mod throttle;
mod watchdog;
mod workers;
mod workload;

pub use breaker::CircuitState;
pub use builder::ListenerBuilder;
pub use drain::{DrainEnd, DrainReport};
pub use error::StartError;
pub use event::ListenerEvent;
pub use handle::ListenerHandle;
pub use health::{Health, ListenerHealth};
pub use info::ListenerInfo;
pub use lanes::{Lanes, LanesHandle};
pub(crate) use listeners::Listeners;
pub use listeners::ServiceShutdown;
pub use phase::ListenerPhase;
pub use receiving::{ReceiveError, ReceiveFailure};
pub use shutdown::ShutdownReport;
