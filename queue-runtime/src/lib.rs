//! Typed messages over storage queues: in memory, on one SQLite file, and on Azure Queue Storage, with
//! only a URL changed.
//!
//! A module imports only modules below it in this table:
//!
//! | module | does |
//! |---|---|
//! | [`testing`] | for tests: messages made by hand, what was submitted, paused time, injected faults |
//! | `service` | the facade: [`QueueService`], its builder, [`Queue`] handles, [`Redrive`] |
//! | `listener` | [`ListenerBuilder`], [`ListenerHandle`]: receives messages and runs a handler for each |
//! | `receive` | [`Accept`], [`Delivery`], [`Received`], [`Handler`]: `backend → wire → message → handler → disposition → backend` |
//! | [`recurring`] | messages that are submitted at set times |
//! | `request` | [`Request`], [`Reply`]: messages whose sender waits for a reply |
//! | `send` | [`Submit`], [`SubmitAll`]: `message → envelope → wire → backend` |
//! | `context` | the state that all parts of one service share |
//! | `repeat` | repeats of failed storage operations: their pauses and their end |
//! | `settings`, `served`, [`idempotency`], `lease` | timeouts and thresholds; the kind of message that each queue is for; work that is done once; leases and their renewal |
//! | `background`, `delay_queue` | the background thread; items by due time |
//! | [`policy`] | when to poll again, when to handle a message again, when to repeat a storage operation |
//! | [`backend`] | the storage engines |
//! | [`meter`] | counts storage transactions, and prices them |
//! | `observe` | metrics and spans for the application's monitoring |
//! | [`notify`] | wake-ups: consumers that wait learn of new messages without polling |
//! | `clock`, `panic`, `stop_on_drop` | the system's clock; caught panics; guards of what runs |

pub mod backend;
mod background;
pub mod clock;
mod context;
mod creations;
mod delay_queue;
pub mod idempotency;
mod lease;
pub mod listener;
pub mod meter;
pub mod notify;
mod observe;
pub mod panic;
pub mod policy;
pub mod receive;
pub mod recurring;
mod repeat;
pub mod request;
pub mod send;
mod served;
pub mod service;
pub mod settings;
mod stop_on_drop;
pub mod testing;

pub use clock::{Clock, SystemClock, Timestamp};
pub use idempotency::{OnceError, once};
pub use listener::{
    Lanes, ListenerBuilder, ListenerEvent, ListenerHandle, ShutdownReport, StartError,
};
pub use policy::{RetryPolicy, StorageRetry};
pub use receive::{
    Accept, AcceptError, Delivery, Handler, OnError, Poisoned, Received, SettleError,
    SettleProblem, Settled, blocking,
};
pub use request::{Request, RequestError, RequestProblem};
pub use send::{Submit, SubmitAll, SubmitError, SubmitProblem, Submitted};
#[cfg(feature = "signal")]
pub use service::StopSignals;
pub use service::redrive;
pub use service::{AnyQueue, ConnectError, Queue, QueueService, ServiceBuilder};
pub use settings::ConsumerConfig;
pub use stop_on_drop::StopOnDrop;

#[doc(hidden)]
pub use queue_core::internal;
pub use queue_core::{
    Disposition, Error, ErrorKind, Failure, FollowUp, Message, MessageId, Operation, Outcome,
    QueueName, RequestId, Result, RetryAdvice,
};
pub use queue_core::{encoder, envelope, golden, message, name, wire};
pub use queue_derive::Message;
#[cfg(feature = "sqlite")]
pub use rusqlite;

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs in the description of the design compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/design.md")]
struct Design;

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
