//! Hand-written code on the bare SDK: JSON in Base64, without envelope, renewal or retry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use azure_core::http::{ClientOptions, RetryOptions, StatusCode, Url};
use azure_storage_queue::models::{
    QueueClientReceiveMessagesOptions, QueueMessage, ReceivedMessage,
};
use azure_storage_queue::{QueueClient, QueueServiceClient, QueueServiceClientOptions};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use queue_instructions::Parcel;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::tasks::{all_of, side_by_side, submit_with, take_with};

#[derive(Clone)]
pub(crate) struct Queue(Arc<QueueClient>);

/// A version of the protocol that Azurite supports by default.
pub(crate) const VERSION: &str = "2021-12-02";

/// The queue's name.
pub(crate) const QUEUE: &str = "bare-parcel";

/// The maximum number of messages that one request receives.
const MAX_RECEIVED: u32 = 32;

impl Queue {
    pub(crate) async fn open(url: &str) -> Outcome<Self> {
        Self::open_with(url, RetryOptions::default()).await
    }

    /// Opens the queue for a run in which a request that fails is not sent again.
    pub(crate) async fn open_without_retries(url: &str) -> Outcome<Self> {
        Self::open_with(url, RetryOptions::none()).await
    }

    async fn open_with(url: &str, retry: RetryOptions) -> Outcome<Self> {
        let options = QueueServiceClientOptions {
            client_options: ClientOptions {
                retry,
                ..ClientOptions::default()
            },
            version: VERSION.to_owned(),
        };
        let service = QueueServiceClient::new(Url::parse(url)?, None, Some(options))?;
        let queue = service.queue_client(QUEUE)?;
        queue.create(None).await?;
        Ok(Self(Arc::new(queue)))
    }

    /// Puts, receives and handles a message, and returns the time of putting and receiving.
    pub(crate) async fn put_and_receive(&self, number: u32) -> Outcome<Duration> {
        let started = Instant::now();
        self.send(&Parcel::new(number)).await?;
        let received = self.receive(1).await?;
        let took = started.elapsed();
        let message = received.into_iter().next();
        self.handle(message.ok_or("the message is missing")?)
            .await?;
        Ok(took)
    }

    async fn send(&self, parcel: &Parcel) -> Outcome<()> {
        let message = QueueMessage {
            message_text: Some(text(parcel)?),
        };
        self.0.send_message(message.try_into()?, None).await?;
        Ok(())
    }

    async fn receive(&self, most: u32) -> Outcome<Vec<ReceivedMessage>> {
        let options = QueueClientReceiveMessagesOptions {
            number_of_messages: Some(i32::try_from(most)?),
            visibility_timeout: Some(30),
            ..QueueClientReceiveMessagesOptions::default()
        };
        let received = self.0.receive_messages(Some(options)).await?.into_model()?;
        Ok(received.items.unwrap_or_default())
    }

    /// Decodes a message and deletes it.
    async fn handle(&self, message: ReceivedMessage) -> Outcome<()> {
        let _parcel = parcel(&message.message_text.unwrap_or_default())?;
        let id = message.message_id.unwrap_or_default();
        let receipt = message.pop_receipt.unwrap_or_default();
        match self.0.delete_message(&id, &receipt, None).await {
            // The SDK repeats a deletion whose response was lost; then the message is gone already.
            Err(error) if error.http_status() == Some(StatusCode::NotFound) => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }
}

/// Returns the text of a message.
pub(crate) fn text(parcel: &Parcel) -> Outcome<String> {
    Ok(STANDARD.encode(serde_json::to_vec(parcel)?))
}

pub(crate) fn parcel(text: &str) -> Outcome<Parcel> {
    Ok(serde_json::from_slice(&STANDARD.decode(text)?)?)
}

pub(crate) async fn submit(queue: &Queue, messages: u32, tasks: u32) -> Outcome<f64> {
    let queue = queue.clone();
    let submit = move |number| {
        let queue = queue.clone();
        async move { queue.send(&Parcel::new(number)).await }
    };
    submit_with(messages, tasks, submit).await
}

/// Puts, gets and deletes messages in concurrent tasks, one message after the other in each. Returns messages per second.
pub(crate) async fn exchange(queue: &Queue, messages: u32, tasks: u32) -> Outcome<f64> {
    let queue = queue.clone();
    let exchange = move |number| {
        let queue = queue.clone();
        async move { queue.put_and_receive(number).await.map(drop) }
    };
    submit_with(messages, tasks, exchange).await
}

pub(crate) async fn accept(queue: &Queue, messages: u32, tasks: u32) -> Outcome<f64> {
    let queue = queue.clone();
    let take = move || {
        let queue = queue.clone();
        async move {
            let Some(message) = queue.receive(1).await?.pop() else {
                return Ok(0);
            };
            queue.handle(message).await?;
            Ok(1)
        }
    };
    take_with(messages, tasks, take).await
}

/// Receives batches so that `in_flight` messages are in flight, each handled in its own task.
pub(crate) async fn listen(queue: &Queue, messages: u32, in_flight: u32) -> Outcome<f64> {
    let batch = in_flight.min(MAX_RECEIVED);
    let started = Instant::now();
    let handled = side_by_side(in_flight / batch, |_| {
        let queue = queue.clone();
        async move {
            let (mut handled, mut running) = (0, JoinSet::new());
            loop {
                let received = queue.receive(batch).await?;
                if received.is_empty() {
                    return Ok(handled);
                }
                for message in received {
                    let queue = queue.clone();
                    running.spawn(async move { queue.handle(message).await });
                }
                while let Some(done) = running.join_next().await {
                    done??;
                    handled += 1;
                }
            }
        }
    })
    .await?;
    all_of(messages, handled, started)
}
