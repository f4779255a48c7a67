//! The end of a received message: decided in one place, and written in one.
//!
//! ```text
//! how it ended ─► End ─► plan (pure) ─► Plan ─► carried out: written, or proved ─► Settled | SettleProblem
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `end`, `classify` | how a message ended: what its handler returned, as the classifiers of errors see it, or why it is not handled |
//! | `plan` | what becomes of it: a pure function of what is known; every row is in `docs/settlement.md` |
//! | `carry_out` | the order of the steps of a plan, and what follows from those that fail |
//! | `complete`, `recorded` | the follow-ups and replies of a message that is completed, and the record of its work |
//! | `put_back` | the update that makes a message visible again, and what it records of the attempt |
//! | `poison`, `unreplied` | the copy for the poison queue, and what the sender of a request is told |
//! | `write` | the last operation on the message, its repeats, and what an answer proves |
//! | `settled` | the results |

mod carry_out;
mod classify;
mod complete;
mod end;
mod plan;
mod poison;
mod put_back;
pub(crate) mod recorded;
mod settled;
mod unreplied;
mod write;

pub(crate) use carry_out::{Handled, Settling};
pub(crate) use classify::Classifiers;
pub use classify::OnError;
pub(crate) use end::End;
pub(crate) use put_back::body_unhandled;
pub(crate) use settled::outcome;
pub use settled::{SettleProblem, Settled};
pub(crate) use write::{MIN_PATIENCE, fingerprint, leave_out_replies, lost, no_answer};

/// The target of the log lines of a settlement, wherever its code is.
const LOG: &str = "queue_runtime::settlement";
