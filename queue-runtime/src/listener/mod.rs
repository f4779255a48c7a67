//! The listener: dequeue tasks that feed a handler.
//!
//! ```text
//! dispatcher (n tasks) ── receive ──► executor (one task a message) ──► crew (one thread a handler)
//!      ▲                                   │                                │
//!      └─ permits: room in flight ◄────────┤◄────────── disposition ◄───────┘
//!                                          └──► dispose → retry / poison / acknowledge
//! ```
//!
//! | who | holds authority over |
//! |---|---|
//! | dispatcher | when to receive, and how much: never more than there is room for |
//! | executor | the message: its lease, its time-out, its settlement |
//! | crew | the threads that handlers run on, and nothing else |
//! | [`ListenerHandle`] | running → paused → stopping → aborting → stopped |
//!
//! Dispatcher and executor run on the service's engine thread, handlers on threads of their own; so a
//! handler that blocks stalls only itself.

mod builder;
mod crew;
mod dispatcher;
mod event;
mod executor;
mod handle;
mod state;

pub use builder::{ListenerBuilder, StartError};
pub use event::ListenerEvent;
pub use handle::{ListenerHandle, ShutdownReport};
pub use state::ListenerInfo;
