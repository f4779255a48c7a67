//! [`Backend`] for smart pointers to a backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    ApplyError, Backend, Capabilities, Created, Lease, Metadata, NewMessage, Op, OpOutcome,
    PeekedMessage, PopReceipt, PutReceipt, QueueProperties, ReceivedMessage, StorageId,
};
use crate::error::Result;
use crate::idempotency::IdempotencyStore;
use crate::name::QueueName;
use crate::notify::Notifier;

/// Forwards every method. The lint refuses an impl that leaves a method to its default, which would
/// bypass the backend behind the pointer.
macro_rules! forward {
    ($pointer:ident) => {
        #[deny(clippy::missing_trait_methods)]
        #[async_trait]
        impl<B: Backend + ?Sized> Backend for $pointer<B> {
            fn capabilities(&self) -> &Capabilities {
                (**self).capabilities()
            }

            fn queue_uri(&self, queue: &QueueName) -> String {
                (**self).queue_uri(queue)
            }

            fn notifier(&self) -> Option<Arc<dyn Notifier>> {
                (**self).notifier()
            }

            fn results(&self) -> Option<Arc<dyn IdempotencyStore>> {
                (**self).results()
            }

            async fn create_queue(
                &self,
                queue: &QueueName,
                metadata: &Metadata,
            ) -> Result<Created> {
                (**self).create_queue(queue, metadata).await
            }

            async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
                (**self).delete_queue(queue).await
            }

            async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
                (**self).list_queues(prefix).await
            }

            async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
                (**self).properties(queue).await
            }

            async fn metadata(&self, queue: &QueueName) -> Result<Metadata> {
                (**self).metadata(queue).await
            }

            async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
                (**self).set_metadata(queue, metadata).await
            }

            async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
                (**self).put(queue, message).await
            }

            async fn receive(
                &self,
                queue: &QueueName,
                max: u32,
                visibility: Duration,
            ) -> Result<Vec<ReceivedMessage>> {
                (**self).receive(queue, max, visibility).await
            }

            async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
                (**self).peek(queue, max).await
            }

            async fn update(
                &self,
                queue: &QueueName,
                id: &StorageId,
                receipt: &PopReceipt,
                visibility: Duration,
                body: Option<Bytes>,
            ) -> Result<Lease> {
                (**self).update(queue, id, receipt, visibility, body).await
            }

            async fn delete(
                &self,
                queue: &QueueName,
                id: &StorageId,
                receipt: &PopReceipt,
            ) -> Result<()> {
                (**self).delete(queue, id, receipt).await
            }

            async fn clear(&self, queue: &QueueName) -> Result<()> {
                (**self).clear(queue).await
            }

            async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
                (**self).apply(ops).await
            }
        }
    };
}

forward!(Arc);
forward!(Box);
