//! Messages in lines, for programs that know no events.

use std::error::Error as _;
use std::time::Duration;

use queue_runtime::backend::{Backend as _, BackendExt as _, NewMessage};
use queue_runtime::envelope::{ClientId, Envelope, PoisonReason};
use queue_runtime::internal::to_base64;
use queue_runtime::message::{DecodeError, DecodeErrorKind, Wire};
use queue_runtime::receive::{CheckpointErrorKind, Settled};
use queue_runtime::request::RequestErrorKind;
use queue_runtime::send::{SubmitErrorKind, UntypedMessage};
use queue_runtime::testing::{self, FaultInjector};
use queue_runtime::wire::{Body, Payload};
use queue_runtime::{
    Disposition, ErrorKind, FollowUp, Message, MessageId, QueueName, Received, RequestId,
};
use serde::{Deserialize, Serialize};
use tokio::time::advance;

use crate::support::{accepted, count, poison};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "slice", queue = "slices", wire = "lines", poison_threshold = 2)]
struct Slice {
    image: String,
    #[message(key)]
    number: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "rendered", queue = "rendered", wire = "lines")]
struct Rendered(u32);

/// As another program writes it, for a host that is gone.
const BODY: &str = "http://gone.example/slices\nold client\norder 7\nsunset.png\n3";

const SLICES: QueueName = QueueName::from_static("slices");

fn slice() -> Slice {
    Slice {
        image: "sunset.png".to_owned(),
        number: 3,
    }
}

async fn put(storage: &FaultInjector, body: impl Into<bytes::Bytes>) {
    let created = storage.create_queue(&SLICES, &Default::default()).await;
    created.expect("created");
    let put = storage.put(&SLICES, NewMessage::new(body)).await;
    put.expect("put");
}

/// The only body on a queue.
async fn stored(storage: &FaultInjector, queue: &str) -> String {
    let peeked = storage.peek(&queue.parse().expect("a name"), 2).await;
    let [message] = &peeked.expect("it exists")[..] else {
        panic!("not one message on `{queue}`")
    };
    String::from_utf8(message.body.to_vec()).expect("text")
}

#[tokio::test(start_paused = true)]
async fn a_body_of_another_program_is_accepted_with_its_ids() {
    let (service, storage) = testing::service_with_faults().await;
    for body in [BODY.to_owned(), to_base64(BODY.as_bytes())] {
        put(&storage, body).await;
        let id = storage.peek(&SLICES, 1).await.expect("peeked")[0]
            .id
            .clone();
        let received = accepted::<Slice>(&service).await;
        assert_eq!(*received.message(), slice());
        let envelope = received.envelope();
        assert_eq!(envelope.id.as_str(), id.as_str());
        assert_eq!(envelope.client_id.as_str(), "old client");
        assert_eq!(envelope.request_id.as_str(), "order 7");
        let uri = envelope.queue_uri.as_deref();
        assert_eq!(uri, Some("http://gone.example/slices"));
        received.complete().await.expect("completed");
    }

    put(&storage, "\n\n\nsunset.png\n3").await;
    let received = accepted::<Slice>(&service).await;
    let uri = storage.queue_uri(&SLICES);
    let request = RequestId::of_foreign(&uri, received.envelope().id.as_str());
    assert_eq!(received.envelope().request_id, request);
    assert_eq!(received.envelope().client_id.as_str(), uri);
}

#[tokio::test(start_paused = true)]
async fn follow_ups_are_in_lines_with_the_ids_of_their_request() {
    let (service, storage) = testing::service_with_faults().await;
    put(&storage, BODY).await;
    let rendered = QueueName::from_static("rendered");
    let expected = format!("{}\nold client\norder 7\n3", storage.queue_uri(&rendered));

    let received = accepted::<Slice>(&service).await;
    received.submit(Rendered(3)).await.expect("submitted");
    assert_eq!(stored(&storage, "rendered").await, expected);
    storage.clear(&rendered).await.expect("cleared");

    let next = Disposition::Complete(vec![FollowUp::new(&Rendered(3))]);
    received.settle(next).await.expect("settled");
    assert_eq!(stored(&storage, "rendered").await, expected);
    let submitted = service.submitted::<Rendered>();
    assert_eq!(submitted, [Rendered(3), Rendered(3)]);
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_its_bytes_through_retries_the_poison_queue_and_a_redrive() {
    let (service, storage) = testing::service_with_faults().await;
    put(&storage, BODY).await;
    for attempt in 1..=3 {
        let received = accepted::<Slice>(&service).await;
        assert_eq!(received.attempt(), attempt);
        let settled = received.retry("no luck").await.expect("settled");
        if let Settled::Poisoned(reason) = settled {
            assert_eq!((reason, attempt), (PoisonReason::Failed, 2));
            break;
        }
        advance(Duration::from_secs(600)).await;
        assert_eq!(stored(&storage, "slices").await, BODY);
    }

    let poisoned = poison(&service, "slices-poison").await;
    let [(record, Body::Event(event))] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!(event.payload, Payload::Binary(BODY.into()));
    assert_eq!((record.raw, record.queue.as_str()), (true, "slices"));
    assert_eq!(event.envelope.request_id.as_str(), "order 7");

    let queue = service.any_queue("slices-poison").expect("a name");
    let redriven = queue.redrive().run().await.expect("redriven");
    assert_eq!(redriven.redriven, 1);
    assert_eq!(stored(&storage, "slices").await, BODY);
    let again = accepted::<Slice>(&service).await;
    assert_eq!(again.envelope().request_id.as_str(), "order 7");
    assert_eq!((again.attempt(), again.message()), (1, &slice()));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_decode_is_poison_with_an_error_that_names_the_field() {
    const NUMBER: &str = "the payload is not a valid `slice` of version 1: field `number`";

    let (service, storage) = testing::service_with_faults().await;
    for (body, problem) in [
        (
            "u\nc\nr\nsunset.png\nsecret",
            format!("{NUMBER} on line 5: expected u32, found text of length 6"),
        ),
        (
            "u\nc\nr\nsecret",
            format!(
                "{NUMBER} is missing: 5 lines are wanted, which are the queue URI, the client id, the request id and the \
                 fields, and 4 were found"
            ),
        ),
        (
            "u\nc\nsecret\x07\nsunset.png\n3",
            "the payload is not a valid `slice` of version 1: the request id on line 3: expected 1 to 1024 bytes without \
             control characters, found text of length 7"
                .to_owned(),
        ),
    ] {
        put(&storage, body).await;
        assert!(service.accept::<Slice>().await.expect("no error").is_none());
        let poisoned = poison(&service, "slices-poison").await;
        let [(record, Body::Event(event))] = &poisoned[..] else {
            panic!("{poisoned:?}")
        };
        assert_eq!(record.reason, PoisonReason::Undecodable);
        assert_eq!(record.error.as_ref(), Some(&problem));
        assert_eq!(event.payload.as_bytes(), body.as_bytes());
        let queue = service.any_queue("slices-poison").expect("a name");
        queue.clear().await.expect("cleared");
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_with_a_line_feed_is_refused_and_nothing_is_stored() {
    let (service, storage) = testing::service_with_faults().await;
    put(&storage, BODY).await;
    let wrong = Slice {
        image: "sun\nset.png".to_owned(),
        ..slice()
    };
    let error = service.submit(wrong.clone()).await.expect_err("refused");
    let SubmitErrorKind::Encode(problem) = &error.kind else {
        panic!("{error}")
    };
    assert_eq!(
        problem.source().expect("a cause").to_string(),
        "field `image`: a value cannot contain what separates lines, and this one of 11 bytes has a line feed at byte 3"
    );
    assert_eq!(error.message, wrong);

    let received = accepted::<Slice>(&service).await;
    let next = Disposition::Complete(vec![FollowUp::new(&wrong)]);
    let settled = received.settle(next).await.expect("settled");
    assert!(!matches!(settled, Settled::Completed), "{settled:?}");
    // The one that was put by hand.
    assert_eq!(service.submitted::<Slice>(), [slice()]);
    assert!(RequestId::new("order\n7").is_err() && ClientId::new("client\r").is_err());
}

#[tokio::test(start_paused = true)]
async fn an_event_of_its_kind_is_accepted_as_well() {
    let service = testing::service().await;
    let client = ClientId::new("shell").expect("valid");
    let mut envelope = Envelope::new(MessageId::random(), client, RequestId::random(), "slice");
    let queue = service.any_queue("slices").expect("a name");
    for version in [1, 2] {
        envelope.version = version;
        let payload = Payload::Json(r#"{"image":"sunset.png","number":3}"#.into());
        let event = UntypedMessage::event(envelope.clone(), payload);
        queue.submit(event).await.expect("submitted");
        let delivery = queue.accept().await.expect("accepted").expect("one");
        let decoded = delivery.message().decode::<Slice>();
        match version {
            1 => assert_eq!(decoded.expect("its type"), slice()),
            _ => assert!(matches!(
                decoded,
                Err(DecodeError {
                    kind: DecodeErrorKind::NewerVersion { .. },
                    ..
                })
            )),
        }
        delivery.complete().await.expect("completed");
    }
}

#[tokio::test(start_paused = true)]
async fn what_needs_an_event_is_refused() {
    let (service, storage) = testing::service_with_faults().await;
    let request = service.request(slice()).reply::<Rendered>().await;
    assert!(matches!(
        request.expect_err("no room for ids").kind,
        RequestErrorKind::NotAnEvent {
            kind: "slice",
            wire: Wire::Lines
        }
    ));
    let packed = service.submit_all([slice()]).packed().await;
    let SubmitErrorKind::Storage(error) = packed.expect_err("no pack").kind else {
        panic!("another problem")
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("`wire = \"lines\"`"), "{error}");
    let unique = service.submit(slice()).unique_until_settled().await;
    let error = unique.expect_err("no room for the key").to_string();
    assert!(
        error.contains("not an event cannot carry the key"),
        "{error}"
    );

    put(&storage, BODY).await;
    let received = accepted::<Slice>(&service).await;
    let error = received.checkpoint(&1).await.expect_err("no room");
    assert!(matches!(error.kind, CheckpointErrorKind::Bare), "{error}");
}

/// Nothing tells the bodies of two types apart.
#[tokio::test(start_paused = true)]
async fn one_handler_of_a_queue_takes_bodies_in_lines() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(kind = "hook", queue = "slices", wire = "bare")]
    struct Hook {
        number: u32,
    }

    let service = testing::service().await;
    let router = || service.router("slices").expect("a name");
    let both = router()
        .handle(async |_: Received<Slice>| ())
        .handle(async |_: Received<Hook>| ());
    let error = both.start().expect_err("two").to_string();
    assert!(error.contains("bodies that are not events"), "{error}");

    service.submit(slice()).await.expect("submitted");
    let one = router().handle(async |slice: Received<Slice>| assert_eq!(slice.number, 3));
    let listener = one.until_empty().start().expect("one");
    assert_eq!(listener.drained().await.info.completed, 1);
    assert_eq!(count(&service, "slices").await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_kit_for_tests_makes_messages_in_lines() {
    let received = testing::received(slice()).request_id("order 7").build();
    assert_eq!(*received.message(), slice());
    assert_eq!(received.envelope().request_id.as_str(), "order 7");
}
