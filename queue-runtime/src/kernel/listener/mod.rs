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
//! Each part owns its state; its module says who may have it changed.
//!
//! | part | owns |
//! |---|---|
//! | `intake` | the dequeue tasks: when they receive, how many there are, when none needs to poll |
//! | `capacity` | how many messages may be received: messages and bytes in flight, lanes, threads, throttling, the circuit breaker |
//! | `router`, `routing` | nothing: they build a listener of several types |
//! | `handling` | the handlers and the tasks that run them, the watchdog, and how a message is settled |
//! | `phase` | whether the listener receives or stops, and what has to end before it has stopped |
//! | `counters`, `event`, `observer` | what the listener tells about itself, and shows of its messages |
//! | `latency` | how old messages are when they are completed, for an objective |
//! | `sampling`, `sweeping` | nothing: they read depths for metrics, and remove old results of an idempotency store |
//! | `listeners` | which listeners of a service run |
//!
//! Dequeue tasks and handlers run on the application's runtime. The watchdog runs in the background with
//! the renewals, so that a blocked runtime neither loses leases nor hides failed attempts.

mod builder;
mod capacity;
mod core;
mod counters;
mod error;
mod event;
mod handle;
mod handling;
mod health;
mod info;
mod intake;
mod lanes;
mod latency;
mod listeners;
mod observer;
mod phase;
mod router;
mod routing;
mod sampling;
mod start;
mod sweeping;

pub use crate::kernel::lease::OverdueRenewal;
pub use builder::ListenerBuilder;
pub use capacity::CircuitState;
pub use error::StartError;
pub use event::{ListenerEvent, ListenerEventKind};
pub use handle::ListenerHandle;
pub use health::{Health, ListenerHealth};
pub use info::ListenerInfo;
pub use intake::{ReceiveError, ReceiveFailure};
pub use lanes::{Lanes, LanesHandle};
pub use latency::ObjectiveState;
pub(crate) use listeners::Listeners;
pub use listeners::ServiceShutdown;
pub use observer::{Observed, Observer};
pub use phase::{DrainEnd, DrainReport, ListenerPhase, ShutdownReport};
pub use router::{Route, Router, Several};
