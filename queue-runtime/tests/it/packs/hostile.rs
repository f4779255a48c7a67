//! Packs that somebody else wrote.

use bytes::Bytes;
use queue_runtime::backend::{BackendExt as _, ItemSet, NewMessage};
use queue_runtime::envelope::{AttemptRecord, ClientId, Envelope, MessageId, RequestId};
use queue_runtime::wire::{Event, Pack, Payload, encode_payload};
use queue_runtime::{Message, QueueService, Received};

use crate::packs::support::{BOTH, Handled, Job, Marks, World, depth, jobs};

fn envelope(id: &str, version: u32) -> Envelope {
    let id = MessageId::new(id).expect("an id");
    let (client, request) = (
        ClientId::new("a stranger").expect("valid"),
        RequestId::random(),
    );
    let mut envelope = Envelope::new(id, client, request, Job::TYPE.kind());
    envelope.version = version;
    envelope
}

fn event(number: u32) -> Bytes {
    let envelope = envelope(&format!("job-{number}"), 1);
    let data = format!("{{\"number\":{number}}}");
    encode_payload(&envelope, &Payload::Json(data.into())).into()
}

fn pack_of(id: &str, events: &[Bytes]) -> Bytes {
    let pack = Pack::new(events).expect("it fits");
    encode_payload(&envelope(id, Pack::VERSION), &Payload::Pack(pack)).into()
}

async fn put(service: &QueueService, body: impl Into<Bytes>) {
    jobs(service).create().await.expect("created");
    let queue = Job::TYPE.queue();
    let put = service.backend().put(&queue, NewMessage::new(body));
    put.await.expect("put");
}

/// Handles all jobs, and returns them with the number of messages that were moved to the poison queue.
async fn drained(service: &QueueService) -> (Handled, usize) {
    let handled = Handled::default();
    let counting = handled.clone();
    let listener = service.listener(move |job: Received<Job>| {
        let counting = counting.clone();
        async move {
            counting.count(job.number);
        }
    });
    let listener = listener.until_empty().start().expect("starts");
    let info = listener.drained().await.info;
    (handled, info.poisoned)
}

#[tokio::test(start_paused = true)]
async fn a_wrong_item_is_poison_by_itself() {
    for marks in BOTH {
        let service = World::new(marks).service().await;
        let inner = pack_of("inner", &[event(7), event(8)]);
        let wrong = [
            event(0),
            Bytes::from_static(b"17"),
            inner,
            Bytes::from_static(b"{\"specversion\":\"1.0\"}"),
            event(1),
        ];
        put(&service, pack_of("outer", &wrong)).await;
        let (handled, poisoned) = drained(&service).await;
        assert_eq!(poisoned, 3, "{marks:?}");
        assert!(handled.other_than(1, 0..2).is_empty());
        assert_eq!((handled.of(7), depth(&service).await), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_does_not_decode_is_poison_as_a_whole_and_a_redrive_tries_again() {
    for marks in BOTH {
        let service = World::new(marks).service().await;
        let whole = pack_of("pack", &[event(0), event(1)]);
        let text = String::from_utf8(whole.to_vec()).expect("JSON");
        for (of, by) in [
            ("\"packitems\":2", "\"packitems\":3"),
            ("\"packitems\":2", "\"packitems\":5000"),
            ("\"datasize\":", "\"datasize\":9"),
            ("\"data_base64\":\"", "\"data_base64\":\"AAAA"),
        ] {
            let damaged = text.replacen(of, by, 1);
            assert_ne!(damaged, text);
            put(&service, damaged).await;
        }
        let (_, poisoned) = drained(&service).await;
        assert_eq!((poisoned, depth(&service).await), (4, 0), "{marks:?}");
        let poison = service.queue::<Job>().poison().expect("a name");
        assert_eq!(poison.redrive().run().await.expect("redriven").redriven, 4);
        assert_eq!(drained(&service).await.1, 4, "{marks:?}: as before");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_a_sender_wrote_is_not_believed() {
    let service = World::new(Marks::Beside).service().await;
    let body = pack_of("pack", &[event(0), event(1)]);
    let Some(pack) = Pack::find(&body) else {
        panic!("it is a pack");
    };
    let pack: Event = *pack;
    let mut attempts = AttemptRecord::default();
    (attempts.failures, attempts.forgiven) = (usize::MAX, usize::MAX);
    let encoder = queue_runtime::encoder::Encoder::new(
        service.backend().capabilities(),
        queue_runtime::encoder::MessageEncoding::default(),
    );
    let body = encoder.pack_with(&pack, &attempts, &ItemSet::default());
    put(&service, body.expect("it fits")).await;
    let (handled, poisoned) = drained(&service).await;
    assert_eq!(poisoned, 0);
    assert!(handled.other_than(1, 0..2).is_empty());
}
