#![doc = include_str!("docs/crate.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("docs/errors.md")]

pub mod backend;
mod extensions;
pub mod guide;
mod kernel;
pub mod service;
#[cfg(feature = "testing")]
pub mod testing;

pub use extensions::{idempotency, meter, payloads, recurring, request};
pub use kernel::{clock, notify, panic, policy, send, settings, tower};

/// The listener: dequeue tasks that feed a handler.
pub mod listener {
    pub use crate::extensions::flow::lanes::{Lanes, LanesHandle};
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
pub use idempotency::{OnceError, OnceErrorKind, once};
pub use kernel::stop_on_drop::StopOnDrop;
pub use listener::{
    Lanes, ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle, ShutdownReport,
    StartError, StartErrorKind,
};
pub use policy::{RetryPolicy, StorageRetry};
pub use receive::{
    Accept, AcceptError, AcceptErrorKind, AcceptMany, Batch, CompleteAllError, Delivery, Handler,
    Messages, OnError, Poisoned, Received, SettleError, SettleErrorKind, Settled, batch, blocking,
};
#[cfg(feature = "sqlite")]
pub use receive::{InTransaction, in_transaction, prepare};
pub use request::{Request, RequestError, RequestErrorKind};
pub use send::{Submit, SubmitAll, SubmitError, SubmitErrorKind, Submitted};
pub use service::{
    AnyQueue, ConnectError, ConnectErrorKind, Queue, QueueService, ServiceBuilder, redrive,
};
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
