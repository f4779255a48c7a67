//! Typed messages over storage queues: in memory, on one SQLite file, and on Azure Queue Storage, with
//! only a URL changed.
//!
//! Data flows one way through the modules; nothing imports a module below it in this table.
//!
//! | module | does |
//! |---|---|
//! | `service` | the facade: [`QueueService`], its builder, [`Queue`] handles, [`Redrive`] |
//! | `listener` | [`ListenerBuilder`], [`ListenerHandle`]: dequeue tasks that feed a handler |
//! | `receive` | [`Accept`], [`Delivery`], [`Received`], [`Handler`]: from the backend to a handler, and from its [`Disposition`] back |
//! | `send` | [`Submit`], [`SubmitAll`]: `message → envelope → wire → backend` |
//! | `context` | what everything of one service shares |
//! | `settings`, `idempotency`, `lease` | timeouts and thresholds; what is done already; one owner of each pop receipt |
//! | `background`, `schedule`, `panic` | where renewals and watchdogs run, when they look, what they catch |
//! | [`policy`] | when to poll again, when to retry |
//! | [`backend`] | the storage engines |
//! | [`testing`] | paused time and injected faults, for tests |

pub mod backend;
mod background;
mod clock;
mod context;
mod idempotency;
mod lease;
mod listener;
mod panic;
pub mod policy;
mod receive;
mod schedule;
mod send;
mod service;
mod settings;
pub mod testing;

pub use clock::SystemClock;
pub use listener::{
    ListenerBuilder, ListenerEvent, ListenerHandle, ListenerInfo, ListenerPhase, ShutdownReport,
    StartError,
};
pub use panic::CaughtPanic;
pub use policy::RetryPolicy;
pub use receive::{
    Accept, AcceptError, Blocking, Delivery, Handler, Poisoned, Received, SettleError,
    SettleProblem, Settled, blocking,
};
pub use send::{Submit, SubmitAll, SubmitAllError, SubmitError, SubmitProblem, Submitted};
pub use service::{
    AnyQueue, ConnectError, Peeked, Queue, QueueService, Redrive, Redriven, ServiceBuilder,
};
pub use settings::{DEFAULT_TIMEOUT, InvalidSetting, POISON_THRESHOLD};

pub use queue_core::encoder::{MessageEncoding, RAW_KIND, TooLarge};
#[doc(hidden)]
pub use queue_core::internal;
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
