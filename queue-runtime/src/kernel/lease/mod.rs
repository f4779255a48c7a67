//! The lease on a received message: one owner of its pop receipt.
//!
//! ```text
//!             answered
//!            ┌────────┐
//!            ▼        │
//!          Held ──────┘◄── renewal answered ─────┐
//!           │ │                                  │
//!           │ └── update or delete unanswered ─► Doubtful
//!           │                                    │
//!           ├── settled ──────► Settled ◄────────┤ settled, or proved to be
//!           └── gone, or the ─► Lost ◄───────────┘ the certain end
//!               certain end
//! ```
//!
//! Every transition is listed in `docs/states.md`.
//!
//! | file | has authority over |
//! |---|---|
//! | `machine` | the transitions: a pure function of events and times |
//! | `state` | the receipt, whose turn it is to send a request, the outcome of an application's transaction, and the signal that work on the message should stop |
//! | `renewal` | sending renewals when they are due; it tells which are late |
//! | `guard` | settling: [`Lease`] is the one owner of the right to settle |
//! | `proof` | what a stale receipt proves about a settlement |
//! | `unanswered` | which requests got no answer |
//! | `completion` | completing within an application's transaction, and learning its outcome |
//! | `storage_time` | the storage's time, in which messages expire |
//!
//! Renewals and settlements take turns, so one never overtakes the other. A renewal that got no
//! answer may have changed the receipt: from then on a stale receipt proves nothing, and the lease counts as
//! lost only at its certain end, the latest time at which it can still be valid.

mod completion;
mod guard;
mod machine;
mod proof;
mod renewal;
mod state;
mod storage_time;
mod unanswered;

pub(crate) use completion::{CompletedItem, Completer, unsupported};
pub(crate) use guard::{Lease, Locked, Rewriter};
pub(crate) use proof::{Gone, LastOp, Proof};
pub use renewal::OverdueRenewal;
pub(crate) use renewal::Renewals;
pub(crate) use state::{Cancellation, Cause, Promise};
pub(crate) use storage_time::{MARGIN, Receive};
pub(crate) use unanswered::{Earlier, Intent, Purpose};
