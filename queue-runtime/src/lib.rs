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
pub use kernel::{clock, notify, panic, send, settings, tower};

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

/// PostgreSQL: the engine, and handlers that work in transactions on the database of the queues.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use crate::extensions::transactions::postgres::{InTransaction, in_transaction};
    pub use queue_postgres::*;
}

/// Policies of polling, of retries of messages and of storage operations, and the limit of requests to the storage.
pub mod policy {
    pub use crate::extensions::storage_limit::StorageLimit;
    pub use crate::kernel::policy::*;
}

pub use clock::Timestamp;
pub use idempotency::once;
pub use listener::{ListenerBuilder, ListenerEvent, ListenerEventKind, ListenerHandle, StartError};
pub use policy::RetryPolicy;
pub use receive::{Batch, Delivery, Handler, Received, batch, blocking};
#[cfg(feature = "sqlite")]
pub use receive::{in_transaction, prepare};
pub use send::{SubmitError, Submitted};
pub use service::{AnyQueue, Queue, QueueService};

#[cfg(feature = "azure")]
pub use queue_azure as azure;
#[doc(hidden)]
pub use queue_core::internal;
pub use queue_core::{
    Disposition, Error, ErrorKind, Failure, FollowUp, Message, MessageId, QueueName, RequestId,
    Result, encoder, envelope, error, golden, message, name, wire,
};
pub use queue_derive::Message;
#[cfg(feature = "nats")]
pub use queue_nats as nats;
pub use queue_sharded as sharded;
#[cfg(feature = "sqlite")]
pub use queue_sqlite as sqlite;
