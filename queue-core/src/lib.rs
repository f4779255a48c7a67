//! The contracts of a typed-message framework for storage queues. Applications depend on
//! `queue-runtime`, which re-exports what they need from here.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | what a type says about itself: [`Message`], [`MessageType`] |
//! | [`envelope`] | what travels beside the payload: [`Envelope`] and its ids |
//! | [`encoder`] | message and envelope to the body that a backend stores |
//! | [`wire`] | the bytes: envelope and payload to body and back |
//! | [`backend`] | the storage contract: [`Backend`](backend::Backend) |
//! | [`disposition`] | what a handler answers: [`Disposition`], [`FollowUp`] |
//! | [`idempotency`] | the key that makes repeated deliveries recognisable |
//! | [`name`], [`clock`], [`error`] | queue names, time, failures of storage |
//! | [`golden`] | for users' tests: a committed event must keep its form |
//! | `conformance` | the suite that every backend passes (feature `conformance`) |
//!
//! Sending, data flows `message → encoder → wire → backend`; receiving, back again. No module here
//! does I/O (but for `golden`, which reads files in tests), waits, or knows a runtime.

pub mod backend;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod disposition;
pub mod encoder;
pub mod envelope;
pub mod error;
pub mod golden;
pub mod idempotency;
#[doc(hidden)]
pub mod internal;
pub mod message;
pub mod name;
mod text;
mod timestamp;
pub mod wire;

pub use clock::{Clock, ManualClock, Timestamp};
pub use disposition::{Disposition, Failure, FollowUp, IntoDisposition};
pub use envelope::{ClientId, Envelope, InvalidId, MessageId, RequestId};
pub use error::{Error, ErrorKind, Operation, Outcome, Result, Retry};
pub use idempotency::IdempotencyKey;
pub use message::{DecodeError, EncodeError, KeyScope, Message, MessageType, Wire};
pub use name::{InvalidName, NameProblem, QueueName};
