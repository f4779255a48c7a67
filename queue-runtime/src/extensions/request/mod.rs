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
//! | `queue` | which reply queue this instance has now, its creation, its heartbeats, its deletion; who waits for which reply |
//! | `server` | the task of a reply queue: receives while a request waits, and ends some time after the last one; which reply queues belong to no living instance |
//!
//! A reply queue belongs to the instance that created it, and nobody else creates it again. The owner of a reply queue
//! writes a new number into its metadata several times in each lease: a heartbeat. Other instances delete a reply queue
//! only after they have seen the same heartbeat at three checks, each at least half a lease after the one before, on
//! their own monotonic clock: the machine of owner and observer may have been suspended in one of two intervals, and an
//! owner that resumes writes a new number at once. Checks of heartbeats need neither clocks that agree nor rights on
//! messages.
//!
//! | metadata | value |
//! |---|---|
//! | `replybeat` | a number that the owner of the reply queue changes four times in each lease |
//! | `replylease` | the lease of the reply queue in milliseconds, at most an hour |
//!
//! An instance checks up to 32 reply queues, chosen at random, when it creates its own, and then about every ten
//! leases. A reply queue that cannot be read or deleted is logged and skipped; a queue whose name or metadata is not
//! that of a reply queue is never deleted.
//!
//! | event | effect |
//! |---|---|
//! | The owner of a reply queue was stopped for longer than its lease, and the queue was deleted. | Requests that wait end with `ReplyQueueDeleted`; the next request creates another reply queue. |
//! | The owner makes a request, and its last heartbeat is half a lease old. | The owner first writes a heartbeat, and so learns whether its reply queue exists. |
//! | A message ends, with a reply or without, and the reply queue of its sender does not exist. | The reply is left out: only the owner creates a reply queue, so that none comes back after its owner is gone. |
//! | The name in `replyto` is not that of a reply queue. | The reply is left out, with a warning: no sender can have a handler write to other queues. |
//!
//! Settling a message for good tells the sender of a request in the same step that no reply comes, unless the handler,
//! or `on_poison`, replies. Retries and postponements tell the sender nothing, nor does what becomes of the message on
//! a poison queue. The owner of a reply queue deletes all that it receives, also a reply that nobody waits for.

mod builder;
mod error;
mod queue;
mod server;

pub use builder::{NoReplyType, Reply, Request};
pub use error::{RequestError, RequestErrorKind};
pub(crate) use queue::{DEFAULT_LEASE, LONGEST_LEASE, Replies, SHORTEST_LEASE};
