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
//! | `core` | no state: it is handed to all parts |
//! | `handle` | the parts, as one listener, and the handles to it |
//! | `intake` | the dequeue tasks: when they receive, how many there are, when none needs to poll |
//! | `capacity` | how many messages may be received: messages and bytes in flight, threads, throttling, and what flow control allows |
//! | `builder`, `router`, `start` | no state: they build a listener, also one of several types, and start it |
//! | `handling` | the handlers and the tasks that run them, the watchdog, and how a message is settled |
//! | `phase` | whether the listener receives or stops, and what has to end before it has stopped |
//! | `info`, `event` | what an operator sees: figures, health and events |
//! | `jobs` | how old messages are when they are completed, and whether that keeps the objective; it also reads depths for metrics, and removes old results of a result store |
//! | `listeners` | which listeners of a service run |
//!
//! Dequeue tasks and handlers run on the application's runtime. The watchdog runs in the background with
//! the renewals, so that a blocked runtime neither loses leases nor hides failed attempts.

mod builder;
pub(crate) mod capacity;
mod core;
pub(crate) mod doors;
mod event;
mod handle;
mod handling;
mod info;
mod intake;
mod jobs;
mod listeners;
mod phase;
mod router;
mod start;

pub use crate::kernel::lease::OverdueRenewal;
pub use builder::ListenerBuilder;
pub use capacity::breaker::CircuitState;
pub use doors::{Arriving, Door, SharedState, Wait};
pub use event::{ListenerEvent, ListenerEventKind};
pub use handle::{ListenerHandle, ShutdownReport};
pub use info::{
    Health, ListenerHealth, ListenerInfo, ObjectiveState, ReceiveError, ReceiveErrorKind,
    ReceiveFailure,
};
pub use listeners::ServiceShutdown;
pub(crate) use listeners::{Listeners, ShuttingDown};
pub use phase::{DrainEnd, DrainReport, ListenerPhase};
pub use router::{Route, Router, Several};
pub use start::{StartError, StartErrorKind};
