//! Staying below the storage's limits: the requests of the [metered](crate::meter) backend wait until they may be sent.
//!
//! Each request takes a token of its queue's [`Bucket`](crate::bucket::Bucket), and then one of the account's, as far
//! as they are limited. [`RequestTurns`](turns::RequestTurns) alone decides which request gets the next token:
//!
//! ```text
//!            the first of its queue,          the first of those that have
//!            and the queue has a token        their queue's, and the account has one
//! waiting ──────────────────────────▶ ready ──────────────────────────────────────▶ sent
//!    │                                  │
//!    └─────────── dropped ──────────────┘  the queue keeps its token, for the next
//! ```
//!
//! Requests about a leased message are before all others, and otherwise earlier requests are before later ones, on a
//! queue and among the queues of the account. A renewal waits for other renewals and settlements only. A waiting
//! request is woken when it becomes the first in line; only the first watches the clock.
//!
//! A request is what the [meter](crate::meter) counts, except that a page of a long answer takes no further token. An
//! engine that carries out several operations [in order](queue_core::backend::Atomicity::InOrder) makes a request for
//! each, so it is given one operation at a time. An engine whose operations are atomic makes one request for all of
//! them, on the queue of the first.

mod limited;
mod turns;

pub(crate) use limited::Limiter;
pub use limited::StorageLimit;
