//! Sending: `message → envelope → wire → backend`.

mod follow_ups;
mod submit;
mod submit_all;

pub(crate) use follow_ups::{Role, encode_follow_ups};
pub use submit::{Submit, SubmitError, SubmitProblem, Submitted};
pub use submit_all::{SubmitAll, SubmitAllError};
