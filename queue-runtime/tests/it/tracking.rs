//! Tracked messages are found by their ids, and taken back.

use std::sync::Arc;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::{Operation, Outcome};
use queue_runtime::payloads::MemoryPayloads;
use queue_runtime::request::RequestErrorKind;
use queue_runtime::service::{Cancelled, Rescheduled, Status};
use queue_runtime::testing::{self, Fault, FaultInjector, TestService, TokioClock};
use queue_runtime::{Disposition, ErrorKind, Message, QueueService, Received, RetryPolicy};
use queue_tests::{HOUR, SECOND};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::support::{Hourly, guarded, stop};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(
    queue = "orders",
    tracked,
    poison_threshold = 2,
    visibility_timeout = "30s"
)]
struct Order {
    number: u32,
}

/// A message that leaves another behind.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "parcels", tracked)]
struct Parcel {
    #[message(group)]
    to: String,
}

fn is_on(status: &Status, name: &str) -> bool {
    let value = serde_json::to_value(status).expect("JSON");
    value["queue"] == name
}

#[tokio::test(start_paused = true)]
async fn the_status_follows_a_message_to_its_end() {
    let service = testing::service().await;
    let delayed = service.submit(Order { number: 1 }).delay(60 * SECOND);
    let order = delayed.await.expect("submitted");
    let status = async || service.status(&order.id).await.expect("read");
    assert!(matches!(status().await, Status::Delayed { .. }));
    sleep(60 * SECOND).await;
    let waiting = status().await;
    assert!(matches!(waiting, Status::Waiting { .. }) && is_on(&waiting, "orders"));

    let held = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("one");
    match status().await {
        Status::Held {
            receives: 1,
            since,
            client_id,
            until,
            ..
        } => {
            assert_eq!(client_id.as_ref(), Some(service.client_id()));
            assert!(since < until);
        }
        other => panic!("{other:?}"),
    }
    held.checkpoint(&"page 7".to_owned())
        .await
        .expect("written");
    let is_page_7 = |checkpoint: Option<Value>| checkpoint == Some(json!("page 7"));
    match status().await {
        Status::Held { checkpoint, .. } => assert!(is_page_7(checkpoint)),
        other => panic!("{other:?}"),
    }
    held.retry_after(HOUR, "not yet").await.expect("put back");
    match status().await {
        Status::PutBack {
            receives: 1,
            checkpoint,
            ..
        } => assert!(is_page_7(checkpoint)),
        other => panic!("{other:?}"),
    }
    sleep(HOUR).await;
    let held = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("one");
    held.reject("broken").await.expect("rejected");
    let poison = status().await;
    let Status::Poison { record, .. } = &poison else {
        panic!("{poison:?}");
    };
    assert!(is_on(&poison, "orders-poison") && record.error.as_deref() == Some("broken"));

    let poison = service.any_queue("orders-poison").expect("a name");
    poison.redrive().run().await.expect("redriven");
    let waiting = status().await;
    assert!(
        matches!(waiting, Status::Waiting { .. }) && is_on(&waiting, "orders"),
        "{waiting:?}"
    );
    let held = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("one");
    held.complete().await.expect("completed");
    assert!(matches!(status().await, Status::Gone));
}

/// An answer to an order.
#[derive(Debug, Serialize, Deserialize, Message)]
struct Receipt {
    number: u32,
}

/// Whoever asks is told at once, whether or not a handler runs.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_reply_is_told_of_a_cancel() {
    let service = testing::service().await;
    for is_held in [false, true] {
        let request = service.request(Order { number: 1 }).request_id("r-1");
        let waits = tokio::spawn(request.reply::<Receipt>().timeout(HOUR).into_future());
        let orders = service.queue::<Order>().any();
        let order = loop {
            sleep(SECOND).await;
            // The first request creates the queue.
            let page = orders.browse(None, 1).await;
            if let Some(order) = page.ok().and_then(|mut page| page.messages.pop()) {
                break order.body.envelope().expect("an event").id.clone();
            }
        };
        let held = if is_held {
            service.accept::<Order>().await.expect("accepted")
        } else {
            None
        };
        service.cancel(&order).await.expect("cancelled");
        let unanswered = waits.await.expect("no panic").expect_err("no reply");
        assert!(
            matches!(unanswered.kind, RequestErrorKind::Cancelled),
            "{unanswered}"
        );
        if let Some(held) = held {
            let late = held.reply(&Receipt { number: 1 }).await;
            assert!(late.is_err(), "it is not there any more");
        }
    }
}

/// Where operations are carried out one by one, nobody is told of a removal that is refused.
#[tokio::test(start_paused = true)]
async fn who_waits_is_not_told_of_a_cancel_that_fails() {
    let clock = Arc::new(TokioClock::new());
    let faults = FaultInjector::new(Arc::new(MemoryBackend::new(clock.clone())));
    let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock);
    let service = service.payloads(Arc::new(MemoryPayloads::new()));
    let service = service.on_current_runtime().connect();
    let service = service.await.expect("connects");
    let request = service.request(Order { number: 1 }).request_id("r-1");
    let waits = tokio::spawn(request.reply::<Receipt>().timeout(HOUR).into_future());
    let held = loop {
        sleep(SECOND).await;
        if let Ok(Some(held)) = service.accept::<Order>().await {
            break held;
        }
    };
    for operation in [Operation::Delete, Operation::Apply] {
        faults.fail_every(operation, Fault::Refused(ErrorKind::Denied));
    }
    let id = held.envelope().id.clone();
    let refused = service.cancel(&id).await.expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Denied);
    faults.heal();
    held.reply(&Receipt { number: 1 }).await.expect("replied");
    let receipt = waits.await.expect("no panic").expect("a reply");
    assert_eq!(receipt.number, 1);
}

/// A cancel that is repeated, because its answer was lost, tells that the message was removed.
#[tokio::test(start_paused = true)]
async fn a_cancel_whose_answer_is_lost_is_known() {
    let memory = Arc::new(MemoryBackend::new(Arc::new(TokioClock::new())));
    let faults = FaultInjector::new(memory);
    let service = QueueService::with_backend(Arc::new(faults.clone()));
    let service = service.clock(Arc::new(TokioClock::new())).connect();
    let service = service.await.expect("connects");
    let order = service
        .submit(Order { number: 1 })
        .await
        .expect("submitted");
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    let lost = service.cancel(&order.id).await.expect_err("lost");
    assert_eq!(lost.outcome(), Outcome::Unknown);
    let again = service.cancel(&order.id).await.expect("cancelled");
    assert_eq!(again, Cancelled::Before);
}

/// Tells which order is handled.
async fn note(sender: mpsc::UnboundedSender<u32>, order: Received<Order>) {
    sender.send(order.number).expect("it is received");
    tokio::task::yield_now().await;
}

async fn handled(service: &TestService) -> mpsc::UnboundedReceiver<u32> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let listener = service.listener_with(sender, note).start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    receiver
}

#[tokio::test(start_paused = true)]
async fn what_is_cancelled_before_it_is_received_does_not_run() {
    let service = testing::service().await;
    let orders = service.submit_all((0..4).map(|number| Order { number }));
    let orders = orders.await.expect("submitted");
    let delayed = service
        .submit(Order { number: 4 })
        .delay(HOUR)
        .await
        .expect("submitted");
    for id in [&orders[1].id, &delayed.id] {
        let cancelled = service.cancel(id).await.expect("cancelled");
        assert_eq!(cancelled, Cancelled::Removed);
        let again = service.cancel(id).await.expect("looked for");
        assert_eq!(again, Cancelled::Before);
        let status = service.status(id).await.expect("read");
        assert!(matches!(status, Status::Cancelled), "{status:?}");
    }
    let mut handled = handled(&service).await;
    let mut numbers = Vec::new();
    while let Some(number) = handled.recv().await {
        numbers.push(number);
    }
    assert_eq!(numbers, [0, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_message_is_cancelled_is_told_and_leaves_no_retry() {
    let service = testing::service().await;
    let order = service
        .submit(Order { number: 1 })
        .await
        .expect("submitted");
    let (sender, mut began) = mpsc::unbounded_channel();
    let handler = async |sender: mpsc::UnboundedSender<bool>, order: Received<Order>| {
        sender.send(true).expect("it is received");
        order.cancelled().await;
        sender.send(false).expect("it is received");
        Disposition::retry("it was cancelled")
    };
    let listener = service
        .listener_with(sender, handler)
        .retry(RetryPolicy::fixed(SECOND));
    let listener = listener.start().expect("starts");
    assert_eq!(guarded(began.recv()).await.expect("it begins"), Some(true));
    let began_at = tokio::time::Instant::now();
    let cancelled = service.cancel(&order.id).await.expect("cancelled");
    assert_eq!(cancelled, Cancelled::Revoked);
    assert_eq!(
        guarded(began.recv()).await.expect("it is told"),
        Some(false)
    );
    assert!(
        began_at.elapsed() <= 15 * SECOND,
        "{:?}",
        began_at.elapsed()
    );
    testing::drain([&listener]).await.expect("drained");
    assert!(began.try_recv().is_err());
    stop(listener).await;
    assert!(matches!(
        service.status(&order.id).await.expect("read"),
        Status::Cancelled
    ));
    let poison = service.any_queue("orders-poison").expect("a name");
    assert!(poison.properties().await.is_err(), "nothing is poison");
}

#[tokio::test(start_paused = true)]
async fn a_poison_message_stays_and_a_group_goes_on() {
    let service = testing::service().await;
    let order = service
        .submit(Order { number: 1 })
        .await
        .expect("submitted");
    let held = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("one");
    held.reject("broken").await.expect("rejected");
    let cancelled = service.cancel(&order.id).await.expect("looked for");
    assert_eq!(cancelled, Cancelled::Poison);
    assert!(matches!(
        service.status(&order.id).await.expect("read"),
        Status::Poison { .. }
    ));

    let parcel = || Parcel { to: "ada".into() };
    let first = service.submit(parcel()).await.expect("submitted");
    let second = service.submit(parcel()).await.expect("submitted");
    let behind = service.status(&second.id).await.expect("read");
    assert!(matches!(behind, Status::Behind { .. }), "{behind:?}");
    service.cancel(&first.id).await.expect("cancelled");
    let waiting = service.status(&second.id).await.expect("read");
    assert!(matches!(waiting, Status::Waiting { .. }), "{waiting:?}");
}

#[tokio::test(start_paused = true)]
async fn a_poison_copy_of_a_cancelled_message_is_not_redriven_unless_it_is_asked_for() {
    let service = testing::service().await;
    for _ in 0..2 {
        let order = service.submit(Order { number: 1 }).id("order 1");
        order.await.expect("submitted");
    }
    let held = service.accept::<Order>().await.expect("accepted");
    held.expect("one").reject("broken").await.expect("rejected");
    let id = "order 1".parse().expect("an id");
    let cancelled = service.cancel(&id).await.expect("looked for");
    assert_eq!(cancelled, Cancelled::Removed, "the other copy");

    let poison = service.queue::<Order>().poison().expect("a name");
    let looked = poison.redrive().dry_run().await.expect("looked at");
    assert_eq!((looked.redriven, looked.cancelled), (0, 1));
    let redriven = poison.redrive().run().await.expect("carried out");
    assert_eq!((redriven.redriven, redriven.cancelled), (0, 1));

    // What is put on its queue after the cancel is no copy of what was cancelled.
    sleep(SECOND).await;
    let forced = poison.redrive().including_cancelled();
    assert_eq!(forced.run().await.expect("carried out").redriven, 1);
    let held = service.accept::<Order>().await.expect("accepted");
    held.expect("one").reject("broken").await.expect("rejected");
    let redriven = poison.redrive().run().await.expect("carried out");
    assert_eq!((redriven.redriven, redriven.cancelled), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn tracked_messages_are_not_packed_and_others_are_not_found() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(queue = "untracked")]
    struct Note {
        number: u32,
    }
    let service = testing::service().await;
    let orders = service.submit_all((0..10).map(|number| Order { number }));
    orders.packed().await.expect("submitted");
    let queue = service.any_queue("orders").expect("a name");
    let properties = queue.properties().await.expect("read");
    assert_eq!(properties.approximate_count, 10);
    let note = service.submit(Note { number: 1 }).await.expect("submitted");
    assert!(matches!(
        service.status(&note.id).await.expect("read"),
        Status::Gone
    ));
}

/// Imports and transactions of the file keep messages tracked; so does a restart.
#[tokio::test]
async fn messages_are_tracked_in_a_file_and_where_they_are_imported() {
    let folder = tempfile::tempdir().expect("a folder");
    let connect = async |name: &str| {
        let url = format!("sqlite:{}", folder.path().join(name).display());
        QueueService::connect(&url).await.expect("opens")
    };
    let service = connect("first.db").await;
    let order = service
        .submit(Order { number: 1 })
        .await
        .expect("submitted");
    service.shutdown(SECOND).await;
    let service = connect("first.db").await;
    let status = service.status(&order.id).await.expect("read");
    assert!(matches!(status, Status::Waiting { .. }), "{status:?}");

    let orders = service.any_queue("orders").expect("a name");
    let exported = orders.export(None, 10).await.expect("exported");
    let other = connect("second.db").await;
    let imported = other.any_queue("orders").expect("a name");
    imported.create().await.expect("created");
    imported.import(&exported.messages).await.expect("imported");
    let cancelled = other.cancel(&order.id).await.expect("cancelled");
    assert_eq!(cancelled, Cancelled::Removed);
}

/// A message can be brought forward and put off, until somebody has received it.
#[tokio::test(start_paused = true)]
async fn a_message_is_rescheduled_until_it_is_received() {
    let service = testing::service().await;
    let order = service
        .submit(Order { number: 1 })
        .delay(HOUR)
        .await
        .expect("submitted");
    let reschedule = async |delay| service.reschedule(&order.id, delay).await.expect("asked");
    assert!(matches!(reschedule(2 * HOUR).await, Rescheduled::To { .. }));
    sleep(HOUR).await;
    assert!(service.accept::<Order>().await.expect("asked").is_none());
    assert!(matches!(
        reschedule(std::time::Duration::ZERO).await,
        Rescheduled::To { .. }
    ));
    let held = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("one");
    assert_eq!((held.number, held.attempt()), (1, 1));
    assert_eq!(reschedule(HOUR).await, Rescheduled::Hidden);
    held.reject("broken").await.expect("rejected");
    assert_eq!(reschedule(HOUR).await, Rescheduled::Poison);
    let poison = service.any_queue("orders-poison").expect("a name");
    poison.clear().await.expect("cleared");
    assert_eq!(reschedule(HOUR).await, Rescheduled::Gone);
}

/// A listener that polls once an hour is woken by a message that is brought forward.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_brought_forward_is_announced() {
    let service = testing::service().await;
    let order = service
        .submit(Order { number: 1 })
        .delay(24 * HOUR)
        .await
        .expect("submitted");
    let (sender, mut handled) = mpsc::unbounded_channel();
    let listener = service
        .listener_with(sender, note)
        .idle(Hourly)
        .start()
        .expect("starts");
    sleep(10 * SECOND).await;
    let asked = tokio::time::Instant::now();
    service
        .reschedule(&order.id, std::time::Duration::ZERO)
        .await
        .expect("rescheduled");
    assert_eq!(guarded(handled.recv()).await.expect("it comes"), Some(1));
    assert!(asked.elapsed() < HOUR, "{:?}", asked.elapsed());
    stop(listener).await;
}
