//! Sending: `message → envelope → wire → backend`.

mod follow_ups;
mod packing;
pub(crate) mod payload;
mod submit;
mod submit_all;
mod submit_error;
mod unique_key;
mod unreplied;
mod untyped;

pub(crate) use follow_ups::{Role, encode_follow_ups, submitted_again};
pub(crate) use submit::{Outgoing, Sending, Unique};
pub use submit::{Submit, Submitted};
pub use submit_all::{SubmitAll, SubmitAllError};
pub use submit_error::{SubmitError, SubmitProblem};
pub(crate) use unique_key::{UniqueKey, UniquePut, UniqueRecord, release, take_again};
pub(crate) use unreplied::Unreplied;
pub use untyped::UntypedMessage;
