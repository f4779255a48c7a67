//! Sending: `message → envelope → wire → backend`.

mod outgoing;
mod submit;
mod submit_all;

pub(crate) use outgoing::{Role, encode_follow_ups};
pub use submit::{Submit, SubmitError, SubmitProblem, Submitted};
pub use submit_all::{SubmitAll, SubmitAllError};
