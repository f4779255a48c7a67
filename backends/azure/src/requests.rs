//! Requests to the service: each operation sends one, except lists.

use std::future::Future;

use azure_core::http::ClientMethodOptions;
use azure_storage_queue::{QueueClient, QueueServiceClient};
use queue_core::backend::PopReceipt;
use queue_core::{Error, Operation, QueueName, Result};

use super::call::Caller;
use super::failure::Failure;

/// The SDK's clients. Each call has the deadline; its arguments have been checked.
pub(super) struct Requests {
    pub(super) service: QueueServiceClient,
    pub(super) caller: Caller,
}

impl Requests {
    pub(super) async fn on_queue<T, F>(
        &self,
        operation: Operation,
        queue: &QueueName,
        receipt: Option<&PopReceipt>,
        call: impl FnOnce(QueueClient, ClientMethodOptions<'static>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = azure_core::Result<T>> + Send,
    {
        let fail = |failure: Failure| self.error(failure, operation, queue);
        let client = self.service.queue_client(queue.as_str());
        let client = client.map_err(|error| fail(Failure::from_sdk(error)))?;
        let answer = self
            .caller
            .call(operation, receipt.cloned(), |options| call(client, options));
        answer.await.map_err(fail)
    }

    pub(super) fn error(&self, failure: Failure, operation: Operation, queue: &QueueName) -> Error {
        let now = self.caller.clock.now();
        failure.into_error(operation, now).with_queue(queue)
    }
}
