//! The listener: dequeue tasks that feed a handler.
//!
//! ```text
//!        application's runtime                               background
//! dequeue (n tasks) ── receive ──► executor (a task for each message)
//!      ▲                               │ ▲                      ▲
//!      │                               ▼ │ disposition          │ tells to stop,
//!      └── room in flight ◄──── finish   handler                │ takes over
//!                                 │                          watchdog
//!                                 └──► retry / poison / acknowledge
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `phase` | whether the listener receives, stops or has stopped; only [`ListenerHandle`] and the end of the runtime change it |
//! | `dequeue` | when to receive, and how much: never more than there is room for |
//! | `executor` | the message: its handler and its settlement |
//! | `watchdog` | the handler's time: it takes over the messages of handlers that do not react |
//! | `run` | which of the two settles a message |
//! | `room` | when another message may take a message's place |
//!
//! Dequeue tasks and handlers run on the application's runtime. The watchdog runs in the background with
//! the renewals, so that a blocked runtime costs no lease and no attempt that nobody counts.

mod builder;
mod core;
mod dequeue;
mod event;
mod executor;
mod finish;
mod handle;
mod info;
mod phase;
mod room;
mod run;
mod threads;
mod watchdog;

pub use builder::{ListenerBuilder, StartError};
pub use event::ListenerEvent;
pub use handle::{ListenerHandle, ShutdownReport};
pub use info::ListenerInfo;
pub use phase::ListenerPhase;
