//! Sending: `message → envelope → wire → backend`.

mod dispatch;
mod error;
mod follow_ups;
mod packing;
mod submit;
mod submit_all;
mod unique_key;
mod untyped;

pub(crate) use dispatch::{Dispatch, Outgoing};
pub use error::{SubmitAllError, SubmitError, SubmitErrorKind};
pub(crate) use follow_ups::{
    FollowUpError, Role, Unreplied, check_one_step, encode_follow_ups, submitted_again,
};
pub(crate) use submit::Unique;
pub use submit::{Submit, Submitted};
pub use submit_all::SubmitAll;
pub(crate) use unique_key::{UniqueKey, UniquePut, UniqueRecord, release, take_again};
pub use untyped::UntypedMessage;
pub(crate) use untyped::{check_payload, check_readable, check_size, fit_payload};
