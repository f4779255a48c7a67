//! Sending: `message → envelope → wire → backend`.

mod conditional;
mod follow_ups;
mod in_transaction;
mod packing;
pub(crate) mod payload;
mod submit;
mod submit_all;
mod submit_error;
mod unique;
mod unique_key;
mod unreplied;
mod untyped;

pub(crate) use conditional::SubmittedIf;
pub(crate) use follow_ups::{Role, encode_follow_ups, submitted_again};
pub(crate) use in_transaction::{announce_later, write};
pub use submit::{Submit, Submitted};
pub use submit_all::{SubmitAll, SubmitAllError};
pub use submit_error::{SubmitError, SubmitProblem};
pub(crate) use unique_key::{release, take_again};
pub(crate) use unreplied::Unreplied;
pub use untyped::UntypedMessage;
