#![doc = include_str!("docs/crate.md")]

pub mod backend;
mod extensions;
mod kernel;
pub mod service;
#[cfg(feature = "testing")]
pub mod testing;

pub use extensions::{idempotency, meter, payloads, recurring, request};
pub use kernel::{clock, notify, panic, policy, send, settings, tower};

/// The listener: dequeue tasks that feed a handler.
pub mod listener {
    pub use crate::extensions::lanes::{Lanes, LanesHandle};
    pub use crate::kernel::listener::*;
}

/// Receiving: `backend → wire → envelope → message → handler → disposition → backend`.
pub mod receive {
    pub use crate::extensions::transactions::Completing;
    #[cfg(feature = "sqlite")]
    pub use crate::extensions::transactions::{InTransaction, Prepare, in_transaction, prepare};
    pub use crate::kernel::receive::*;
}

pub use clock::{Clock, SystemClock, Timestamp};
pub use extensions::storage_limit::StorageLimit;
pub use idempotency::{OnceError, once};
pub use kernel::stop_on_drop::StopOnDrop;
pub use listener::{
    Lanes, ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle, ShutdownReport,
    StartError,
};
pub use policy::{RetryPolicy, StorageRetry};
pub use receive::{
    Accept, AcceptError, AcceptMany, Batch, CompleteAllError, Delivery, Handler, Messages, OnError,
    Poisoned, Received, SettleError, SettleProblem, Settled, batch, blocking,
};
#[cfg(feature = "sqlite")]
pub use receive::{InTransaction, in_transaction, prepare};
pub use request::{Request, RequestError, RequestProblem};
pub use send::{Submit, SubmitAll, SubmitError, SubmitProblem, Submitted};
pub use service::{AnyQueue, ConnectError, Queue, QueueService, ServiceBuilder, redrive};
#[cfg(feature = "signal")]
pub use service::{StopSignal, StopSignals};
pub use settings::ConsumerConfig;

#[cfg(feature = "azure")]
pub use queue_azure as azure;
#[doc(hidden)]
pub use queue_core::internal;
pub use queue_core::{
    Disposition, Error, ErrorKind, Failure, FollowUp, Message, MessageId, Operation, Outcome,
    QueueName, RequestId, Result, RetryAdvice, encoder, envelope, golden, message, name, wire,
};
pub use queue_derive::Message;
#[cfg(feature = "nats")]
pub use queue_nats as nats;
pub use queue_sharded as sharded;
#[cfg(feature = "sqlite")]
pub use queue_sqlite as sqlite;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs in the guide to testing run.
#[cfg(all(doctest, feature = "sqlite"))]
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
