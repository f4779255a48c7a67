//! The four messages as the original mosaic wrote them, in lines. The files beside this one were typed by hand from a
//! description of the original: no code wrote them.

use std::sync::Arc;

use async_trait::async_trait;
use queue_runtime::backend::{Backend, Capabilities, MemoryBackend, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::internal::forward_backend;
use queue_runtime::testing::TokioClock;
use queue_runtime::{Delivery, Message, QueueName, QueueService, golden};
use serde::{Deserialize, Serialize};

/// Asks for a mosaic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[serde(rename_all = "PascalCase")]
#[message(queue = "imagerequest", wire = "lines")]
struct ImageRequest {
    image_uri: String,
    image_library_uri: String,
    tile_size: u8,
    slices: u8,
}

/// Asks for a slice of a mosaic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[serde(rename_all = "PascalCase")]
#[message(queue = "slicerequest", wire = "lines")]
struct SliceRequest {
    image_library_uri: String,
    slice_uri: String,
    #[message(key)]
    slice_sequence: u8,
    tile_size: u8,
}

/// Says that a slice is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[serde(rename_all = "PascalCase")]
#[message(queue = "sliceresponse", wire = "lines")]
struct SliceResponse {
    slice_uri: String,
}

/// Says that a mosaic is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[serde(rename_all = "PascalCase")]
#[message(queue = "imageresponse", wire = "lines")]
struct ImageResponse {
    image_uri: String,
}

const CLIENT: &str = "5d3ef2b0-6a0c-4f0e-9b55-4be8a1d0c7f1";
const REQUEST: &str = "c9b4a7de-18f4-4c52-8f43-0f0a6f5a2e66";

const IMAGE_REQUEST: &str = include_str!("image-request.txt");
const SLICE_REQUEST: &str = include_str!("slice-request.txt");
const SLICE_RESPONSE: &str = include_str!("slice-response.txt");
const IMAGE_RESPONSE: &str = include_str!("image-response.txt");

fn blob(name: &str) -> String {
    format!("http://photomosaics.blob.core.windows.net/{name}")
}

fn image_request() -> ImageRequest {
    ImageRequest {
        image_uri: blob("imageinput/sunset.png"),
        image_library_uri: blob("imagelibrary/flickr"),
        tile_size: 16,
        slices: 4,
    }
}

fn slice_request() -> SliceRequest {
    SliceRequest {
        image_library_uri: blob("imagelibrary/flickr"),
        slice_uri: blob("sliceinput/sunset_2.png"),
        slice_sequence: 2,
        tile_size: 16,
    }
}

fn slice_response() -> SliceResponse {
    SliceResponse {
        slice_uri: blob("sliceoutput/sunset_2.png"),
    }
}

fn image_response() -> ImageResponse {
    ImageResponse {
        image_uri: blob("imageoutput/sunset.png"),
    }
}

/// Queues in memory, with the URIs of the original's storage account.
#[derive(Debug)]
struct Account(MemoryBackend);

#[async_trait]
impl Backend for Account {
    forward_backend!(self => self.0;
        partition notifier results payload_store transactions create_queue delete_queue list_queues properties
        metadata set_metadata put put_if receive peek attachment browse find update delete clear apply);

    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        format!("http://photomosaics.queue.core.windows.net/{queue}")
    }
}

/// The service, and what another program sees of its queues.
async fn account() -> (QueueService, Arc<Account>) {
    let clock = Arc::new(TokioClock::new());
    let account = Arc::new(Account(MemoryBackend::new(clock.clone())));
    let service = QueueService::with_backend(Arc::clone(&account) as _).clock(clock);
    let service = service.on_current_runtime().connect().await;
    (service.expect("connected"), account)
}

async fn accepted<M: Message>(service: &QueueService) -> Delivery<M> {
    let accepted = service.accept::<M>().await.expect("no error");
    accepted.expect("a message")
}

impl Account {
    async fn put_text(&self, queue: QueueName, body: &'static str) {
        let created = self.create_queue(&queue, &Default::default()).await;
        created.expect("created");
        let put = self.put(&queue, NewMessage::new(body)).await;
        put.expect("put");
    }

    /// The only body on a queue.
    async fn stored(&self, queue: QueueName) -> String {
        let peeked = self.peek(&queue, 2).await.expect("it exists");
        let [message] = &peeked[..] else {
            panic!("{} messages on `{queue}`", peeked.len())
        };
        String::from_utf8(message.body.to_vec()).expect("text")
    }
}

/// Checks that the text is read as the message, and the message written as the text.
async fn assert_spoken<M: Message + Clone + PartialEq + std::fmt::Debug>(
    message: M,
    text: &'static str,
) {
    let (service, account) = account().await;
    account.put_text(M::TYPE.queue(), text).await;
    let received = accepted::<M>(&service).await;
    assert_eq!(*received.message(), message);
    assert_eq!(received.envelope().client_id.as_str(), CLIENT);
    assert_eq!(received.envelope().request_id.as_str(), REQUEST);
    received.complete().await.expect("completed");

    let submit = service
        .submit(message)
        .client_id(CLIENT)
        .request_id(REQUEST);
    submit.await.expect("submitted");
    assert_eq!(account.stored(M::TYPE.queue()).await, text);
}

#[tokio::test(start_paused = true)]
async fn each_message_is_read_and_written_as_the_original_did() {
    assert_spoken(image_request(), IMAGE_REQUEST).await;
    assert_spoken(slice_request(), SLICE_REQUEST).await;
    assert_spoken(slice_response(), SLICE_RESPONSE).await;
    assert_spoken(image_response(), IMAGE_RESPONSE).await;
}

#[test]
fn the_files_are_golden() {
    golden::assert_decodes("tests/it/original/image-request.txt", &image_request());
    golden::assert_decodes("tests/it/original/slice-request.txt", &slice_request());
    golden::assert_decodes("tests/it/original/slice-response.txt", &slice_response());
    golden::assert_decodes("tests/it/original/image-response.txt", &image_response());
}

/// Each step is handled as the original's roles did, and the next message is what they would have written.
#[tokio::test(start_paused = true)]
async fn a_request_keeps_its_ids_through_all_four_messages() {
    let (service, account) = account().await;
    account
        .put_text(ImageRequest::TYPE.queue(), IMAGE_REQUEST)
        .await;

    let request = accepted::<ImageRequest>(&service).await;
    request.submit(slice_request()).await.expect("submitted");
    request.complete().await.expect("completed");
    assert_eq!(
        account.stored(SliceRequest::TYPE.queue()).await,
        SLICE_REQUEST
    );

    let slice = accepted::<SliceRequest>(&service).await;
    slice.submit(slice_response()).await.expect("submitted");
    slice.complete().await.expect("completed");
    assert_eq!(
        account.stored(SliceResponse::TYPE.queue()).await,
        SLICE_RESPONSE
    );

    let slice = accepted::<SliceResponse>(&service).await;
    slice.submit(image_response()).await.expect("submitted");
    slice.complete().await.expect("completed");
    assert_eq!(
        account.stored(ImageResponse::TYPE.queue()).await,
        IMAGE_RESPONSE
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_none_is_poison_and_the_error_names_its_field() {
    let (service, account) = account().await;
    let queue = ImageRequest::TYPE.queue();
    let malformed =
        "http://photomosaics.queue.core.windows.net/imagerequest\nc\nr\nimage\nlibrary\nsixteen\n4";
    account.put_text(queue, malformed).await;
    let accepted = service.accept::<ImageRequest>().await;
    assert!(accepted.expect("no error").is_none());

    let poison = service.any_queue("imagerequest-poison").expect("a name");
    let delivery = poison.accept().await.expect("accepted").expect("one");
    let record = delivery.envelope().poison.as_ref().expect("a record");
    assert_eq!(record.reason, PoisonReason::Undecodable);
    assert_eq!(
        record.error.as_deref(),
        Some(
            "the payload is not a valid `image-request` of version 1: field `TileSize` on line 6: expected u8, found text of \
             length 7"
        )
    );
}
