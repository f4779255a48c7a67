//! Requests: messages whose sender waits for a reply.
//!
//! ```text
//!  request ── ready ──► Replies ── opens ──► the reply queue of this instance ◄── serves ── one task
//!     │                                               ▲     │
//!     │ submit, with `replyto`                  reply │     │ receive
//!     ▼                                               │     ▼
//!  the message's queue ──► handler ── Disposition::reply   Waiting ── by `correlationid` ──► request
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `builder`, `error` | one request: its message, its timeout, its reply |
//! | `replies` | which reply queue this instance has now, and when another one is opened |
//! | `queue` | one reply queue: its creation, its heartbeats, its deletion |
//! | `server` | the task of a reply queue: receives while a request waits, and ends some time after the last one |
//! | `waiting` | who waits for which reply |
//! | `cleaning` | which reply queues belong to no living instance |
//!
//! A reply queue belongs to the instance that created it, and nobody else creates it again. Its owner writes a new
//! number into its metadata several times in each lease: a heartbeat. Others delete it only after they have seen the
//! same number at three checks, each at least half a lease after the one before, on their own monotonic clock. See
//! `docs/states.md`.

mod builder;
mod cleaning;
mod error;
mod queue;
mod replies;
mod server;
mod waiting;

pub use builder::{NoReplyType, Reply, Request};
pub(crate) use cleaning::clean;
pub use error::{RequestError, RequestProblem};
pub(crate) use queue::{DEFAULT_LEASE, LONGEST_LEASE, SHORTEST_LEASE};
pub(crate) use replies::Replies;
