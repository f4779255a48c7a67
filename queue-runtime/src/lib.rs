#![doc = include_str!("docs/crate.md")]

pub mod backend;
mod background;
mod clock;
mod context;
mod creations;
mod delay_queue;
pub mod idempotency;
mod lease;
mod listener;
pub mod meter;
pub mod notify;
mod observe;
mod panic;
pub mod policy;
mod receive;
pub mod recurring;
mod repeat;
mod request;
mod send;
mod served;
mod service;
mod settings;
mod stop_on_drop;
pub mod testing;

pub use idempotency::{Once, OnceError, once};
pub use listener::{
    CircuitBreaker, CircuitState, DrainEnd, DrainReport, Health, Lanes, LanesHandle,
    ListenerBuilder, ListenerConfig, ListenerEvent, ListenerEventKind, ListenerHandle,
    ListenerHealth, ListenerInfo, ListenerPhase, ReceiveError, ReceiveFailure, RetryConfig,
    ServiceShutdown, ShutdownReport, StartError,
};
pub use panic::CaughtPanic;
pub use policy::{RetryPolicy, StorageRetry};
pub use receive::{
    Accept, AcceptError, Blocking, CheckpointError, Completing, Delivery, Handler, HandlerWith,
    MAX_CHECKPOINT, OnError, Poisoned, Received, SettleError, SettleProblem, Settled, blocking,
};
pub use request::{NoReplyType, Reply, Request, RequestError, RequestProblem};
pub use send::{Submit, SubmitAll, SubmitAllError, SubmitError, SubmitProblem, Submitted};
pub use served::OtherKind;
#[cfg(feature = "signal")]
pub use service::StopSignals;
pub use service::{
    AnyQueue, Browsed, BrowsedPage, ConnectError, Peeked, Queue, QueueService, Redrive,
    RedriveError, RedriveOutcome, RedriveStep, Redriven, ServiceBuilder,
};
pub use settings::{DEFAULT_TIMEOUT, InvalidSetting, POISON_THRESHOLD};
pub use stop_on_drop::StopOnDrop;

#[cfg(feature = "azure")]
pub use queue_azure as azure;
pub use queue_clock::SystemClock;
pub use queue_core::encoder::{Encoded, MessageEncoding, RAW_KIND, TooLarge};
#[doc(hidden)]
pub use queue_core::internal;
pub use queue_core::{
    BootTime, ClientId, Clock, DecodeError, Disposition, EncodeError, Envelope, Error, ErrorKind,
    Failure, FollowUp, IdempotencyKey, IntoDisposition, InvalidId, InvalidName, JsonError,
    KeyScope, KeyedMessage, ManualClock, Message, MessageId, MessageType, NameProblem, Operation,
    Outcome, QueueName, RequestId, Result, Retry, Timestamp, Wire, envelope, golden, wire,
};
pub use queue_derive::Message;
#[cfg(feature = "nats")]
pub use queue_nats as nats;
#[cfg(feature = "sqlite")]
pub use queue_sqlite as sqlite;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs in the guide to testing run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
struct TestingGuide;

/// The recipes run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recipes.md")]
struct Recipes;

/// The programs in the guide to listeners compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/listener.md")]
struct ListenerGuide;

/// The programs in the guide to Azure compile.
#[cfg(all(doctest, feature = "azure", feature = "object-store"))]
#[doc = include_str!("../../docs/azure.md")]
struct AzureGuide;

/// The programs in the guide to metrics and traces compile.
#[cfg(all(doctest, feature = "opentelemetry"))]
#[doc = include_str!("../../docs/observability.md")]
struct ObservabilityGuide;
