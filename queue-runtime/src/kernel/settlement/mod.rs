//! The end of a received message: decided in one place, and written in one.
//!
//! ```text
//! how it ended ─► End ─► plan (pure) ─► Plan ─► carried out: written, or proved ─► Settled | SettleErrorKind
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `end` | how a message ended: what its handler returned, or why it is not handled; and how it was settled |
//! | `added` | what the application has travel with each settlement |
//! | `callbacks` | what the application is asked: the classifiers of errors, and `on_poison` |
//! | `plan` | what becomes of the message: a pure function of what is known, tabulated in `docs/settlement.md` |
//! | `carry_out` | the order of the steps of a plan, and what follows from those that fail; the update that makes a message visible again |
//! | `complete` | the follow-ups and replies of a message that is completed, and the record of its work |
//! | `completed_ids` | which messages were completed and not deleted, so that they are not handled again |
//! | `poison` | the copy for the poison queue, and what the sender of a request is told |
//! | `riders` | what travels with a settlement, and what the settlement can do without |
//! | `write` | the last operation on the message, its repeats, and what an answer proves |

mod added;
mod callbacks;
mod carry_out;
mod complete;
mod completed_ids;
mod end;
mod plan;
mod poison;
mod riders;
mod write;

pub(crate) use added::{AddedRiders, OfTypes};
pub use added::{Ended, Rider};
pub(crate) use callbacks::{Classifiers, OnPoison};
pub use callbacks::{OnError, Poisoned};
pub(crate) use carry_out::{Handled, Settling, body_unhandled, transaction_outcome};
pub(crate) use complete::RecordedFollowUps;
pub(crate) use completed_ids::CompletedIds;
pub(crate) use end::{End, outcome};
pub use end::{SettleErrorKind, Settled};
pub(crate) use riders::{RiderKind, Riders};
pub(crate) use write::{fingerprint, lost};

/// The target of the log lines of a settlement, wherever its code is.
const LOG: &str = "queue_runtime::settlement";
