//! From a typed message to the bytes that a backend stores.
//!
//! | step | in | out |
//! |---|---|---|
//! | [`Encoded::of`] | message | [`Encoded`]: its type, key fields and payload |
//! | [`Encoded::body`] | that and its [envelope](Encoded::envelope) | body: an event, or the payload alone |
//! | [`Encoder::encode`] | the same | the body in the backend's form, within its limit |
//! | [`Packer::pack`] | bodies of several messages | the body of a pack of them |
//! | [`Encoder::put_back`], [`poison_event`](Encoder::poison_event), [`restore`](Encoder::restore) | event | the same event with another record |
//!
//! Submissions, follow-ups, the poison queue, redrive and golden files all come through here.

mod encoded;
mod pack;
mod storage;

pub use encoded::Encoded;
pub use pack::Packer;
pub use storage::{Encoder, MessageEncoding, TooLarge};
