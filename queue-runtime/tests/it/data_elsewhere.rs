//! Events of other producers that refer to their data by `dataref` instead of having it: it is not fetched.

use queue_runtime::envelope::{ClientId, Envelope, PoisonReason};
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::{Body, Payload};
use queue_runtime::{Message, MessageId, QueueService, Received, RequestId, testing};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "pictures", poison_threshold = 1)]
struct Picture {
    width: u32,
}

/// A type without fields decodes from no data at all.
#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "bells")]
struct Bell;

const REFERENCE: &str = "https://pictures.example/7?sig=secret";

async fn submit(service: &QueueService, kind: &str, queue: &str) {
    let client = ClientId::new("camera").expect("valid");
    let envelope = Envelope::new(MessageId::random(), client, RequestId::random(), kind);
    let event = UntypedMessage::event(envelope, Payload::Elsewhere(REFERENCE.to_owned()));
    let queue = service.any_queue(queue).expect("valid");
    queue.submit(event).await.expect("submitted");
}

async fn submit_picture(service: &QueueService) {
    service
        .queue::<Picture>()
        .any()
        .create()
        .await
        .expect("created");
    submit(service, Picture::TYPE.kind(), "pictures").await;
}

/// Returns the error of the only message on the poison queue, which still refers to its data.
async fn poisoned(service: &QueueService) -> (PoisonReason, String) {
    let poison = service.queue::<Picture>().poison().expect("valid");
    let poisoned = poison.accept().await.expect("accepted");
    let poisoned = poisoned.expect("it was moved there");
    let Body::Event(event) = poisoned.message() else {
        panic!("{poisoned:?}")
    };
    assert_eq!(event.payload, Payload::Elsewhere(REFERENCE.to_owned()));
    let record = event.envelope.poison.clone().expect("it was moved there");
    poisoned.release().await.expect("released");
    (record.reason, record.error.expect("it says why"))
}

#[tokio::test(start_paused = true)]
async fn no_data_is_made_up() {
    let service = testing::service().await;
    submit_picture(&service).await;
    let listener = service
        .listener(async |_: Received<Picture>| {})
        .until_empty();
    let report = listener.start().expect("valid settings").drained().await;
    assert_eq!(report.info.poisoned, 1);
    let (reason, error) = poisoned(&service).await;
    assert_eq!(reason, PoisonReason::Undecodable);
    assert!(error.contains("`dataref` has 37 bytes"), "{error}");
    assert!(!error.contains("secret"), "{error}");

    let bells = service.queue::<Bell>();
    bells.any().create().await.expect("created");
    submit(&service, Bell::TYPE.kind(), "bells").await;
    assert!(bells.accept().await.expect("accepted").is_none());
    let poisoned = bells.poison().expect("valid").accept().await;
    assert!(poisoned.expect("accepted").is_some());
}

#[tokio::test(start_paused = true)]
async fn an_empty_reference_is_refused() {
    let service = testing::service().await;
    let client = ClientId::new("camera").expect("valid");
    let envelope = Envelope::new(MessageId::random(), client, RequestId::random(), "picture");
    let pictures = service.any_queue("pictures").expect("valid");
    for reference in ["", "a\nb"] {
        let payload = Payload::Elsewhere(reference.to_owned());
        let event = UntypedMessage::event(envelope.clone(), payload);
        let refused = pictures
            .submit(event)
            .await
            .expect_err("no consumer could follow it");
        assert!(refused.to_string().contains("`dataref`"), "{refused}");
    }
}
