//! Handlers tested as functions, and what was submitted.

use std::time::Duration;

use queue_runtime::envelope::ClientId;
use queue_runtime::error::Operation;
use queue_runtime::receive::CheckpointErrorKind;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, Fault};
use queue_runtime::wire::DEFAULT_MAX_PAYLOAD;
use queue_runtime::{Disposition, Failure, Message, Received, Submitted, backend::TimeToLive};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct BasketOrder {
    #[message(key)]
    number: u32,
    #[serde(skip)]
    basket: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(time_to_live = "1h")]
struct Note {
    text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(wire = "bare")]
struct Reading {
    degrees: i32,
}

fn order(number: u32) -> BasketOrder {
    BasketOrder {
        number,
        basket: None,
    }
}

fn note(text: &str) -> Note {
    Note {
        text: text.to_owned(),
    }
}

fn stamp(order: Received<BasketOrder>) -> Result<Disposition, Failure> {
    if order.is_cancelled() {
        return Err(Failure::postpone(Duration::from_secs(1), "told to stop"));
    }
    let done = order.progress::<u32>()?.unwrap_or(0);
    Ok(Disposition::complete().then(&note(&format!("{} of {}", done, order.number))))
}

#[test]
fn a_blocking_handler_is_tested_without_a_runtime() {
    let noted = stamp(testing::received(order(9)).progress(&4).build()).expect("completed");
    assert_eq!(noted, Disposition::complete().then(&note("4 of 9")));
    let stopped = stamp(testing::received(order(9)).cancelled().build());
    let expected = Failure::postpone(Duration::from_secs(1), "told to stop");
    assert_eq!(stopped.expect_err("stopped"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_message_made_by_hand_is_as_one_that_was_received() {
    let service = testing::service().await;
    let sent = BasketOrder {
        number: 7,
        basket: Some("is not on the wire"),
    };
    let submit = service
        .submit(sent.clone())
        .id("m-1")
        .request_id("r-1")
        .client_id("shop");
    submit.await.expect("submitted");
    let real = service
        .accept::<BasketOrder>()
        .await
        .expect("no error")
        .expect("an order");
    let made = service
        .received(sent)
        .id("m-1")
        .request_id("r-1")
        .client_id("shop")
        .build();

    assert_eq!(*made, order(7), "it was encoded and decoded");
    assert_eq!(made.envelope(), real.envelope());
    assert_eq!(made.idempotency_key(), real.idempotency_key());
    assert_eq!((made.attempt(), made.dequeue_count()), (1, 1));
    assert_eq!(made.inserted_at(), real.inserted_at());
    assert_eq!((made.expires_at(), made.is_cancelled()), (None, false));

    let second = service
        .received(order(7))
        .attempt(3)
        .age(Duration::from_secs(60));
    let second = second.expires_in(Duration::from_secs(5)).build();
    assert_eq!((second.attempt(), second.dequeue_count()), (3, 3));
    assert_eq!(second.envelope().attempts.failures, 2);
    let life = second
        .expires_at()
        .expect("it expires")
        .duration_since(second.inserted_at());
    assert_eq!(life.as_secs(), 65);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_of_a_message_made_by_hand_is_checked_and_can_be_read() {
    let made = testing::received(order(7)).progress(&1).build();
    made.checkpoint(&2).await.expect("written");
    assert_eq!(made.progress::<u32>().expect("a number"), Some(2));
    let error = made
        .checkpoint(&"x".repeat(2000))
        .await
        .expect_err("too large");
    assert!(
        matches!(error.kind, CheckpointErrorKind::TooLarge { .. }),
        "{error}"
    );
    assert_eq!(made.progress::<u32>().expect("still the last"), Some(2));

    let bare = testing::received(Reading { degrees: 20 }).build();
    let error = bare.checkpoint(&2).await.expect_err("no room");
    assert!(matches!(error.kind, CheckpointErrorKind::Bare), "{error}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the `note` message has a payload of")]
async fn a_message_that_could_not_be_submitted_is_not_made() {
    let _ = testing::received(note(&"x".repeat(DEFAULT_MAX_PAYLOAD))).build();
}

/// One name when it is written, another one when it is read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, Message)]
#[serde(default)]
struct Renamed {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all(serialize = "camelCase"), default)]
struct Line {
    unit_price: Option<u32>,
}

fn renamed() -> Renamed {
    let line = |unit_price| Line { unit_price };
    Renamed {
        lines: vec![line(None), line(Some(7))],
    }
}

const LOST: &str = "the type reads another value than it writes at `lines[1].unitPrice`";

#[tokio::test(start_paused = true)]
async fn what_its_type_reads_otherwise_is_refused_by_a_service_of_tests() {
    let service = testing::service().await;
    let refused = service.submit(renamed()).await.expect_err("refused");
    assert!(matches!(refused.kind, SubmitErrorKind::Encode(_)));
    assert!(format!("{refused:?}").ends_with(LOST), "{refused:?}");
    service
        .submit(Renamed::default())
        .await
        .expect("nothing is lost");

    service.submit(order(7)).await.expect("submitted");
    let order = service.accept::<BasketOrder>().await.expect("no error");
    let order = order.expect("just submitted");
    let refused = order.settle(Disposition::complete().then(&renamed())).await;
    refused.expect("it is rejected");
    let poison = service.any_queue("basket-order-poison").expect("a name");
    let page = poison.browse(None, 1).await.expect("read");
    let record = page.messages[0].body.poison().expect("a record");
    let error = record.error.as_deref().expect("an error");
    assert!(error.ends_with(LOST), "{error}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the type reads another value than it writes at `lines[1].unitPrice`")]
async fn what_its_type_reads_otherwise_is_not_made_by_hand() {
    let _ = testing::received(renamed()).build();
}

#[tokio::test(start_paused = true)]
async fn what_was_submitted_is_returned_by_type_with_how() {
    let service = testing::service().await;
    let made = service
        .received(order(7))
        .id("m-1")
        .request_id("r-1")
        .client_id("shop")
        .build();
    let told: Submitted = made.submit(note("at once")).await.expect("submitted");
    let delay = Duration::from_secs(5);
    service
        .submit(order(8))
        .delay(delay)
        .request_id("r-2")
        .await
        .expect("submitted");
    let abroad = service
        .queue_named::<BasketOrder>("orders-abroad")
        .expect("a name");
    abroad
        .submit_all([order(9), order(10)])
        .await
        .expect("submitted");
    service
        .submit(Reading { degrees: 20 })
        .await
        .expect("submitted");

    let notes = service.submitted::<Note>();
    assert_eq!(notes, [note("at once")]);
    let envelope = notes[0].envelope().expect("an event");
    assert_eq!(
        (&envelope.id, envelope.request_id.as_str()),
        (&told.id, "r-1")
    );
    assert_eq!(envelope.client_id, ClientId::new("shop").expect("an id"));
    assert_eq!(notes[0].key(), None);
    assert_eq!(
        notes[0].time_to_live(),
        TimeToLive::After(Duration::from_secs(3600))
    );

    let orders = service.submitted::<BasketOrder>();
    assert_eq!(orders, [order(8), order(9), order(10)]);
    let queues: Vec<_> = orders.iter().map(|order| order.queue().as_str()).collect();
    assert_eq!(queues, ["basket-order", "orders-abroad", "orders-abroad"]);
    assert_eq!(
        (orders[0].delay(), orders[1].delay()),
        (delay, Duration::ZERO)
    );
    let key = orders[0].key().expect("it has a key field");
    assert_eq!(key.as_str(), r#"["basket-order","r-2",8]"#);

    let readings = service.submitted::<Reading>();
    assert_eq!(readings, [Reading { degrees: 20 }]);
    assert!(readings[0].envelope().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_was_handled_stays_and_what_was_moved_is_no_submission() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    service.submit(order(2)).await.expect("submitted");
    let accept = async || {
        service
            .accept::<BasketOrder>()
            .await
            .expect("no error")
            .expect("an order")
    };
    let handled = accept().await;
    handled.submit(note("handled")).await.expect("submitted");
    handled.complete().await.expect("completed");
    accept()
        .await
        .reject("no")
        .await
        .expect("moved to the poison queue");
    let poison = service.any_queue("basket-order-poison").expect("a name");
    assert_eq!(poison.redrive().run().await.expect("redriven").redriven, 1);

    assert_eq!(service.submitted::<BasketOrder>(), [order(1), order(2)]);
    assert_eq!(service.submitted::<Note>(), [note("handled")]);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_stored_counts_whatever_the_answer() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    let notes = service.queue::<Note>().any();
    notes.create().await.expect("created");
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    service.submit(note("stored")).await.expect_err("unknown");
    faults.fail_next(1, Operation::Put, Fault::RequestLost);
    service.submit(note("lost")).await.expect_err("unknown");
    faults.fail_next(1, Operation::Put, Fault::Duplicated);
    service.submit(note("twice")).await.expect("submitted");
    let stored = [note("stored"), note("twice"), note("twice")];
    assert_eq!(service.submitted::<Note>(), stored);

    // The put of a step whose delete fails is undone.
    let order = service
        .accept::<BasketOrder>()
        .await
        .expect("no error")
        .expect("an order");
    faults.fail_next(
        1,
        Operation::Apply,
        Fault::LeaseLost(Duration::from_secs(30)),
    );
    let disposition = Disposition::complete().then(&note("undone"));
    let completed = order.settle(disposition).await;
    completed.expect_err("the lease is lost");
    assert_eq!(faults.injected(Operation::Apply), 1);
    assert_eq!(service.submitted::<Note>(), stored);
}
