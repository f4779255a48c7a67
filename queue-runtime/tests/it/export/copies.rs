//! Messages that are copied or taken from a queue and put back, from memory to SQLite and the reverse.

use std::time::Duration;

use queue_runtime::envelope::{ClientId, Envelope};
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::send::UntypedMessage;
use queue_runtime::service::ExportedMessage;
use queue_runtime::testing::{self, Fault};
use queue_runtime::wire::{Body, Payload};
use queue_runtime::{AnyQueue, Delivery, ErrorKind, MessageId, QueueService, RequestId};
use queue_tests::orders::{Order, order};
use queue_tests::{HOUR, incompressible};
use serde_json::{Value, json};

use crate::support::{accepted, count, memory};

const LEASE: Duration = Duration::from_secs(30);

async fn sqlite(folder: &tempfile::TempDir) -> QueueService {
    let path = folder.path().join("queues.db");
    let url = format!("sqlite:{}", path.display());
    QueueService::connect(&url).await.expect("opens")
}

/// Through the text of a line.
fn read(messages: &[ExportedMessage]) -> Vec<ExportedMessage> {
    let read = |message| {
        let line = serde_json::to_string(message).expect("JSON");
        assert!(!line.contains('\n'), "{line}");
        serde_json::from_str(&line).expect("what was written")
    };
    messages.iter().map(read).collect()
}

async fn created(service: &QueueService, name: &str) -> AnyQueue {
    let queue = service.any_queue(name).expect("a name");
    queue.create().await.expect("created");
    queue
}

/// The bodies on a queue as they are stored, with what is attached to them.
async fn stored(service: &QueueService, queue: &AnyQueue) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let backend = service.backend();
    let page = backend.browse(queue.name(), None, 100).await;
    let mut stored = Vec::new();
    for message in page.expect("browsed").messages {
        let body = Body::read(&message.body, usize::MAX);
        let is_attached = match &body {
            Body::Event(event) => matches!(event.payload, Payload::Attached(_)),
            _ => false,
        };
        let attached = if is_attached {
            let part = backend.attachment(queue.name(), &message.id, None, 0).await;
            Some(format!("{:?}", part.expect("read")).into_bytes())
        } else {
            None
        };
        stored.push((message.body.to_vec(), attached));
    }
    stored.sort();
    stored
}

/// Puts one message of each kind on `orders-poison`, and returns the queue.
async fn of_all_kinds(service: &QueueService) -> AnyQueue {
    let poison = created(service, "orders-poison").await;
    service.submit(order(1)).await.expect("submitted");
    let first: Delivery<Order> = accepted(service).await;
    let rejected = first.reject("the warehouse is closed").await;
    rejected.expect("rejected");
    let client = ClientId::new("shell").expect("valid");
    let envelope = |kind| {
        Envelope::new(
            MessageId::random(),
            client.clone(),
            RequestId::random(),
            kind,
        )
    };
    let binary = Payload::Binary(vec![0, 255, 10].into());
    for message in [
        UntypedMessage::event(envelope("binary"), binary),
        UntypedMessage::event(
            envelope("large"),
            Payload::Json(format!("\"{}\"", "x".repeat(100_000)).into()),
        ),
        UntypedMessage::bare("a line\nand another"),
        UntypedMessage::bare(vec![0xff, 0xfe]),
        UntypedMessage::bare("{\"specversion\":\"1.0\",\"id\":\"\"}"),
        UntypedMessage::bare(
            "{\n \"specversion\": \"1.0\", \"id\": \"7\", \"source\": \"//plant\", \"type\": \"reading\", \"colour\": \"red\"}",
        ),
    ] {
        poison.submit(message).await.expect("submitted");
    }
    poison
}

/// Submits the orders 1 to 3.
async fn with_three(service: &QueueService) -> AnyQueue {
    let orders = (1..=3).map(order);
    service.submit_all(orders).await.expect("submitted");
    service.any_queue("orders").expect("a name")
}

#[tokio::test]
async fn copies_are_the_same_bytes_on_another_storage() {
    let folder = tempfile::tempdir().expect("a folder");
    for (from, to) in [
        (memory().await, sqlite(&folder).await),
        (
            sqlite(&tempfile::tempdir().expect("a folder")).await,
            memory().await,
        ),
    ] {
        let queue = of_all_kinds(&from).await;
        let page = queue.export(None, 100).await.expect("copied");
        assert_eq!((page.messages.len(), page.left.len()), (7, 0));
        let copies = created(&to, "orders-poison").await;
        copies
            .import(&read(&page.messages))
            .await
            .expect("imported");
        assert_eq!(stored(&to, &copies).await, stored(&from, &queue).await);
        // The record is the one that a consumer wrote.
        assert_eq!(copies.redrive().run().await.expect("redriven").redriven, 1);
        assert_eq!(accepted::<Order>(&to).await.number, 1);
    }
}

#[tokio::test]
async fn attached_data_goes_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (memory().await, sqlite(&folder).await);
    let mut large = order(1);
    large.note = incompressible(300_000);
    from.submit(large.clone()).await.expect("submitted");
    let queue = from.any_queue("orders").expect("a name");
    let page = queue.export(None, 10).await.expect("copied");
    let copies = created(&to, "orders").await;
    copies
        .import(&read(&page.messages))
        .await
        .expect("imported");
    assert_eq!(*accepted::<Order>(&to).await.message(), large);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_delay_and_of_a_life_is_kept() {
    let service = testing::service().await;
    let delayed = service.submit(order(1)).delay(HOUR).time_to_live(2 * HOUR);
    delayed.await.expect("submitted");
    tokio::time::advance(HOUR / 2).await;
    let queue = service.any_queue("orders").expect("a name");
    let page = queue.export(None, 10).await.expect("copied");
    let message = &page.messages[0];
    assert_eq!(message.delay_ms, 1_800_000);
    assert_eq!(message.time_to_live_ms, Some(5_400_000));

    let copies = created(&service, "copies").await;
    copies
        .import(&read(&page.messages))
        .await
        .expect("imported");
    assert!(copies.peek(10).await.expect("peeked").is_empty());
    tokio::time::advance(HOUR / 2 + Duration::from_secs(1)).await;
    assert_eq!(copies.peek(10).await.expect("peeked").len(), 1);
    tokio::time::advance(HOUR).await;
    assert!(
        copies.peek(10).await.expect("peeked").is_empty(),
        "it has expired"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_is_deleted_once_it_is_kept_and_not_before() {
    let service = testing::service().await;
    let queue = with_three(&service).await;
    let taken = queue.take(2, LEASE).await.expect("taken");
    assert_eq!(
        (taken.messages.len(), count(&service, "orders").await),
        (2, 3)
    );
    drop(taken);
    // As after a kill: they come back.
    tokio::time::advance(LEASE).await;
    let taken = queue.take(10, LEASE).await.expect("taken");
    assert_eq!(taken.messages.len(), 3);
    taken.hand_back().await.expect("handed back");
    let taken = queue.take(10, LEASE).await.expect("taken");
    assert_eq!(taken.messages.len(), 3, "at once");
    // The lease ends, and a consumer receives one.
    tokio::time::advance(LEASE).await;
    let consumer: Delivery<Order> = accepted(&service).await;
    let off = taken.delete().await.expect("deleted");
    assert_eq!((off.deleted, off.lost), (2, 1));
    consumer.complete().await.expect("it is the consumer's");
    assert!(queue.take(10, LEASE).await.expect("taken").is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_back_has_not_used_an_attempt() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    for _ in 0..3 {
        let taken = queue.take(10, LEASE).await.expect("taken");
        taken.hand_back().await.expect("handed back");
    }
    let delivery: Delivery<Order> = accepted(&service).await;
    assert_eq!(delivery.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_taken_off_releases_its_key() {
    let service = testing::service().await;
    let unique = || service.submit(order(1)).unique_until_settled();
    unique().await.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    let taken = queue.take(10, LEASE).await.expect("taken");
    assert!(unique().await.expect("no error").duplicate);
    taken.delete().await.expect("deleted");
    assert!(!unique().await.expect("no error").duplicate);
}

#[tokio::test]
async fn items_of_a_pack_that_are_done_stay_done() {
    let service = memory().await;
    let jobs = (1..=4).map(order);
    service.submit_all(jobs).packed().await.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    let mut done = Vec::new();
    for order in service.accept_many::<Order>(2).await.expect("accepted") {
        done.push(order.number);
        order.complete().await.expect("completed");
    }
    let page = queue.export(None, 10).await.expect("copied");
    assert_eq!(page.messages.len(), 2, "the others");
    let other = memory().await;
    let copies = created(&other, "orders").await;
    copies
        .import(&read(&page.messages))
        .await
        .expect("imported");
    let mut numbers = Vec::new();
    while let Some(order) = other.accept::<Order>().await.expect("no error") {
        numbers.push(order.number);
        order.complete().await.expect("completed");
    }
    assert_eq!((done.len(), numbers.len()), (2, 2));
    done.extend(numbers);
    done.sort_unstable();
    assert_eq!(done, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_pack_is_taken_as_the_messages_in_it() {
    let service = memory().await;
    let jobs = (1..=4).map(order);
    service.submit_all(jobs).packed().await.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    let mut lines = Vec::new();
    loop {
        let taken = queue.take(10, LEASE).await.expect("taken");
        if taken.is_empty() {
            break;
        }
        let taken_here = taken.messages.len();
        lines.extend(read(&taken.messages));
        let off = taken.delete().await.expect("deleted");
        assert_eq!((off.deleted, off.lost), (taken_here, 0));
    }
    assert_eq!((lines.len(), count(&service, "orders").await), (4, 0));
    queue.import(&lines).await.expect("imported");
    let mut numbers = Vec::new();
    while let Some(order) = service.accept::<Order>().await.expect("accepted") {
        numbers.push(order.number);
        order.complete().await.expect("completed");
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_line_that_no_export_holds_is_refused_and_those_before_it_are_imported() {
    let service = memory().await;
    service.submit(order(1)).await.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    let page = queue.export(None, 10).await.expect("copied");
    let sound = serde_json::to_value(&page.messages[0]).expect("JSON");
    let with = |name: &str, value: Value| {
        let mut line = sound.clone();
        line[name] = value;
        line
    };
    let elsewhere = json!({
        "specversion": "1.0", "id": "1", "source": "x", "type": "order", "datasize": 1,
        "dataref": "urn:queue:payload:00000000000000000000000000000001:orders:never:00000000000000000000000000000002",
        "datadigest": "00",
    });
    for (line, problem) in [
        (with("text", json!("x")), "just one of"),
        (with("event", json!({ "id": 7 })), "not a CloudEvent"),
        (with("event", elsewhere), "payload store"),
        (with("attachment", json!("AAAA")), "does not say so"),
    ] {
        let read: ExportedMessage = serde_json::from_value(line).expect("of the right form");
        let copies = created(&service, "copies").await;
        let refused = copies.import(&[page.messages[0].clone(), read]).await;
        let refused = refused.expect_err(problem);
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput, "{refused}");
        assert!(refused.to_string().contains(problem), "{refused}");
        assert_eq!((refused.imported, count(&service, "copies").await), (1, 1));
        copies.clear().await.expect("cleared");
    }
    let unknown = serde_json::from_value::<ExportedMessage>(with("priority", json!(1)));
    unknown.expect_err("a member that would be lost");
}

#[tokio::test(start_paused = true)]
async fn puts_that_fail_are_repeated_and_those_that_cannot_be_are_counted() {
    let (service, faults) = testing::service_with_faults().await;
    let queue = with_three(&service).await;
    let page = queue.export(None, 10).await.expect("copied");
    let copies = created(&service, "copies").await;
    faults.fail_next(2, Operation::Apply, Fault::Refused(ErrorKind::Throttled));
    copies.import(&page.messages).await.expect("in the end");
    assert_eq!(count(&service, "copies").await, 3);
    faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let refused = copies.import(&page.messages).await.expect_err("denied");
    assert_eq!(
        (refused.imported, refused.error.kind()),
        (0, ErrorKind::Denied)
    );
}

/// Otherwise each lost answer would put all of them once more.
#[tokio::test(start_paused = true)]
async fn puts_that_may_be_done_are_not_repeated() {
    let (service, faults) = testing::service_with_faults().await;
    let queue = with_three(&service).await;
    let page = queue.export(None, 10).await.expect("copied");
    let copies = created(&service, "copies").await;
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    let lost = copies.import(&page.messages).await.expect_err("unknown");
    assert_eq!(lost.error.outcome(), Outcome::Unknown);
    assert_eq!(count(&service, "copies").await, 3);
}

#[tokio::test]
async fn a_damaged_message_is_left_and_hides_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = sqlite(&folder).await;
    let queue = with_three(&service).await;
    let file = rusqlite::Connection::open(folder.path().join("queues.db"));
    let file = file.expect("opened");
    let damage = "UPDATE queue_messages SET body = x'00' WHERE seq = 2";
    assert_eq!(file.execute(damage, []).expect("damaged"), 1);
    let page = queue.export(None, 10).await.expect("copied");
    assert_eq!((page.messages.len(), page.left.len()), (2, 1));
    let taken = queue.take(10, LEASE).await.expect("taken");
    assert_eq!((taken.messages.len(), taken.left.len()), (2, 1));
    taken.delete().await.expect("deleted");
    assert_eq!(count(&service, "orders").await, 1);
}

#[tokio::test(start_paused = true)]
async fn messages_are_visible_again_at_once_if_the_data_of_one_cannot_be_read() {
    let (service, faults) = testing::service_with_faults().await;
    let mut large = order(1);
    large.note = incompressible(300_000);
    service
        .submit_all([order(0), large, order(2)])
        .await
        .expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    let unreachable = Fault::Refused(ErrorKind::Unreachable);
    faults.fail_every(Operation::FetchData, unreachable);
    queue.take(10, LEASE).await.expect_err("unreachable");
    faults.heal();
    let taken = queue.take(10, LEASE).await.expect("taken");
    assert_eq!(taken.messages.len(), 3);
    taken.hand_back().await.expect("handed back");
    assert_eq!(queue.peek(10).await.expect("peeked").len(), 3);
}
