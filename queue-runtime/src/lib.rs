//! Typed messages over storage queues: in memory, on one SQLite file, and on Azure Queue Storage, with
//! only a URL changed.
//!
//! | module | does | next |
//! |---|---|---|
//! | [`QueueService`] | connects to the queues of one account | |
//! | [`Submit`] | `message → envelope → wire → backend` | |
//! | [`Accept`], [`ListenerBuilder`] | `backend → wire → envelope → message` | [`Delivery`], [`Received`] |
//! | [`Handler`] | the application's code | [`Disposition`] |
//! | `dispose`, `settle` | `disposition → retry, poison or acknowledgement → backend` | |
//! | `lease` | one owner of each pop receipt; renewals | |
//! | [`policy`] | when to poll again, when to try again | |
//! | [`backend`] | the storage engines | |
//! | [`testing`] | paused time and injected faults for tests | |

mod accept;
mod attempts;
pub mod backend;
mod clock;
mod connect;
mod delivery;
mod dispose;
mod encoding;
mod engine;
mod handler;
mod intake;
mod keeper;
mod lease;
mod listener;
mod outgoing;
mod poison;
pub mod policy;
mod queue;
mod redrive;
mod remembered;
mod service;
mod settle;
mod submit;
mod submit_all;
mod terms;
pub mod testing;

pub use accept::{Accept, AcceptError};
pub use clock::SystemClock;
pub use connect::{ConnectError, ServiceBuilder};
pub use delivery::{Delivery, Received, SettleError, SettleProblem};
pub use dispose::Fate;
pub use encoding::MessageEncoding;
pub use handler::Handler;
pub use listener::{
    ListenerBuilder, ListenerEvent, ListenerHandle, ListenerInfo, ShutdownReport, StartError,
};
pub use outgoing::TooLarge;
pub use poison::{Poisoned, RAW_KIND};
pub use policy::RetryPolicy;
pub use queue::{AnyQueue, Peeked, Queue};
pub use redrive::{Redrive, Redriven};
pub use service::QueueService;
pub use submit::{Submit, SubmitError, SubmitProblem, Submitted};
pub use submit_all::{SubmitAll, SubmitAllError};
pub use terms::{DEFAULT_TIMEOUT, InvalidSetting, POISON_THRESHOLD};

#[doc(hidden)]
pub use queue_core::derive_support;
pub use queue_core::{
    ClientId, Clock, DecodeError, Disposition, EncodeError, Envelope, Error, ErrorKind, Failure,
    FollowUp, IdempotencyKey, IntoDisposition, InvalidId, InvalidName, KeyScope, ManualClock,
    Message, MessageId, MessageType, Operation, Outcome, QueueName, RequestId, Result, Retry,
    Timestamp, Wire, envelope, golden, wire,
};
pub use queue_derive::Message;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs in the guide to Azure compile.
#[cfg(all(doctest, feature = "azure"))]
#[doc = include_str!("../../docs/azure.md")]
struct AzureGuide;
