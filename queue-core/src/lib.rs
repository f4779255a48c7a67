//! The contracts of a typed-message framework for storage queues. Applications depend on
//! `storage-queues`, which re-exports what they need from this crate.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | message types: [`Message`], [`MessageType`] |
//! | [`envelope`] | message metadata: [`Envelope`] and its ids |
//! | [`encoder`] | message and envelope to the body that a backend stores |
//! | [`wire`] | the wire format: envelope and payload to body and back |
//! | [`backend`] | the storage contract: [`Backend`](backend::Backend) |
//! | [`notify`] | announcing messages to consumers that wait: [`Notifier`](notify::Notifier) |
//! | [`disposition`] | the outcome of a handler: [`Disposition`], [`FollowUp`] |
//! | [`idempotency`] | the key by which repeated deliveries are recognised, and the contract of result stores |
//! | [`payload_store`] | a place for payloads that the storage of the messages does not keep |
//! | [`lock`] | a lock that one program at a time holds |
//! | [`store_clock`] | the time that an engine stores |
//! | [`name`], [`clock`], [`error`] | queue names, clocks, storage errors |
//! | [`golden`] | golden files, for tests of a type's wire format |
//! | `conformance` | the test suites for what an engine implements (feature `conformance`) |
//!
//! Data flows `message → encoder → wire → backend` on sending, and back on receiving. No module does I/O (except `golden`,
//! which reads files in tests, and the error of a file that may not be used, which asks whose it is), waits, or depends on
//! a runtime.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod clock;
// Beside the contracts, because a reader of the library needs no test suites.
#[cfg(feature = "conformance")]
#[path = "../conformance/mod.rs"]
pub mod conformance;
pub mod disposition;
#[doc(hidden)]
pub mod duration;
pub mod encoder;
pub mod envelope;
pub mod error;
mod ext;
pub mod golden;
pub mod idempotency;
#[doc(hidden)]
pub mod internal;
pub mod lock;
pub mod message;
pub mod name;
pub mod notify;
pub mod payload_store;
mod shown;
pub mod store_clock;
mod text;
pub mod wire;

pub use clock::{BootTime, Clock, ManualClock, Timestamp};
pub use disposition::{Disposition, Failure, FollowUp, IntoDisposition};
pub use envelope::{ClientId, Envelope, InvalidId, MessageId, RequestId};
pub use error::{Error, ErrorKind, Operation, Outcome, Result, RetryAdvice};
pub use idempotency::IdempotencyKey;
pub use message::{
    DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind, JsonError, KeyScope, KeyedMessage,
    MAX_JSON_DEPTH, Message, MessageType, Wire,
};
pub use name::{InvalidName, InvalidNameKind, QueueName};
pub use wire::LinesError;
