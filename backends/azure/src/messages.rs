//! Requests on messages.

use std::time::Duration;

use azure_core::http::RequestContent;
use azure_storage_queue::models::{
    QueueClientDeleteMessageOptions, QueueClientPeekMessagesOptions,
    QueueClientReceiveMessagesOptions, QueueClientSendMessageOptions,
    QueueClientUpdateMessageOptions,
};
use queue_core::backend::{
    Lease, NewMessage, PeekedMessage, PopReceipt, PutReceipt, ReceivedMessage, TimeToLive,
};
use queue_core::{Operation, QueueName, Result};

use super::call_state::RECEIPT_PLACEHOLDER;
use super::requests::Requests;
use super::text::seconds;
use super::{reply, xml};

impl Requests {
    pub(super) async fn put(
        &self,
        queue: &QueueName,
        message: &NewMessage,
        text: &str,
    ) -> Result<PutReceipt> {
        let content = RequestContent::from(xml::message(text));
        let delay = seconds(message.delay);
        let lifetime = match message.time_to_live {
            TimeToLive::Never => -1,
            // After rounding up, the two may be equal, which the service rejects.
            TimeToLive::After(lifetime) => seconds(lifetime).max(delay + 1),
        };
        let answer = self.on_queue(Operation::Put, queue, None, |client, options| {
            let options = QueueClientSendMessageOptions {
                method_options: options,
                message_time_to_live: Some(lifetime),
                visibility_timeout: (delay > 0).then_some(delay),
                ..QueueClientSendMessageOptions::default()
            };
            async move { client.send_message(content, Some(options)).await }
        });
        reply::put(answer.await?.body())
            .map_err(|failure| self.error(failure, Operation::Put, queue))
    }

    pub(super) async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let visibility = seconds(visibility);
        let answer = self.on_queue(Operation::Receive, queue, None, |client, options| {
            let options = QueueClientReceiveMessagesOptions {
                method_options: options,
                number_of_messages: i32::try_from(max).ok(),
                visibility_timeout: Some(visibility),
                ..QueueClientReceiveMessagesOptions::default()
            };
            async move { client.receive_messages(Some(options)).await }
        });
        reply::received(answer.await?.body(), queue, visibility)
            .map_err(|failure| self.error(failure, Operation::Receive, queue))
    }

    pub(super) async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        let answer = self.on_queue(Operation::Peek, queue, None, |client, options| {
            let options = QueueClientPeekMessagesOptions {
                method_options: options,
                number_of_messages: i32::try_from(max).ok(),
                ..QueueClientPeekMessagesOptions::default()
            };
            async move { client.peek_messages(Some(options)).await }
        });
        reply::peeked(answer.await?.body(), queue)
            .map_err(|failure| self.error(failure, Operation::Peek, queue))
    }

    pub(super) async fn update(
        &self,
        queue: &QueueName,
        id: String,
        receipt: &PopReceipt,
        visibility: Duration,
        text: Option<&str>,
    ) -> Result<Lease> {
        let content = text.map(|text| RequestContent::from(xml::message(text)));
        let answer = self.on_queue(
            Operation::Update,
            queue,
            Some(receipt),
            |client, options| {
                let options = QueueClientUpdateMessageOptions {
                    method_options: options,
                    queue_message: content,
                    ..QueueClientUpdateMessageOptions::default()
                };
                let visibility = seconds(visibility);
                async move {
                    let (id, receipt) = (&id, RECEIPT_PLACEHOLDER);
                    client
                        .update_message(id, receipt, visibility, Some(options))
                        .await
                }
            },
        );
        reply::updated(answer.await?.headers())
            .map_err(|failure| self.error(failure, Operation::Update, queue))
    }

    pub(super) async fn delete(
        &self,
        queue: &QueueName,
        id: String,
        receipt: &PopReceipt,
    ) -> Result<()> {
        let answer = self.on_queue(
            Operation::Delete,
            queue,
            Some(receipt),
            |client, options| {
                let options = QueueClientDeleteMessageOptions {
                    method_options: options,
                    ..QueueClientDeleteMessageOptions::default()
                };
                async move {
                    client
                        .delete_message(&id, RECEIPT_PLACEHOLDER, Some(options))
                        .await
                }
            },
        );
        answer.await.map(drop)
    }
}
