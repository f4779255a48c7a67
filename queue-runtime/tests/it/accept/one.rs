//! Accepting one message at a time.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::clock::{Clock, ManualClock};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::meter::TransactionKind;
use queue_runtime::receive::{AcceptError, AcceptErrorKind, SettleErrorKind, Settled};
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{Disposition, ErrorKind, Message, QueueService, RetryPolicy};
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, advance};

use crate::support::{accepted, count, guarded, memory, poison};

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
struct Invoice {
    order: u32,
}

#[tokio::test]
async fn a_message_arrives_with_its_envelope() {
    let service = memory().await;
    let submitted = service
        .submit(order(7))
        .id("m-1")
        .client_id("web 1/ä")
        .request_id("r-1")
        .await
        .expect("submitted");
    assert_eq!(submitted.id.as_str(), "m-1");

    let delivery = accepted::<Order>(&service).await;
    assert_eq!(*delivery.message(), order(7));
    let envelope = delivery.envelope();
    assert_eq!(
        (
            envelope.id.as_str(),
            envelope.client_id.as_str(),
            envelope.request_id.as_str()
        ),
        ("m-1", "web 1/ä", "r-1")
    );
    assert_eq!(envelope.queue_uri.as_deref(), Some("memory:#orders"));
    assert_eq!(delivery.idempotency_key().as_str(), r#"["order","r-1",7]"#);
    assert_eq!((delivery.attempt(), delivery.dequeue_count()), (1, 1));
    delivery.complete().await.expect("completed");
    assert_eq!(count(&service, "orders").await, 0);
    assert!(service.accept::<Order>().await.expect("no error").is_none());
}

#[tokio::test]
async fn a_missing_queue_is_no_empty_queue() {
    let service = memory().await;
    let orders = service.queue_named::<Order>("orders").expect("a name");
    let error = orders.accept().await.expect_err("missing");
    assert!(matches!(error.kind, AcceptErrorKind::QueueNotFound));
    assert_eq!(error.queue.as_str(), "orders");
    let accepted = orders.accept().create_queue().await;
    assert!(accepted.expect("created").is_none());
    assert!(orders.accept().await.expect("exists").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_settled_comes_back_and_its_old_delivery_is_refused() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let visibility = Duration::from_secs(30);
    let accept = || {
        let accept = service.accept::<Order>().visibility_timeout(visibility);
        async { accept.await.expect("no error") }
    };
    drop(accept().await.expect("a message"));
    tokio::time::sleep(visibility - Duration::from_millis(1)).await;
    assert!(accept().await.is_none());
    tokio::time::sleep(Duration::from_millis(1)).await;
    let old = accept().await.expect("it came back");
    assert_eq!(old.attempt(), 2);
    // Time that passes at one stroke, as for a program that was suspended, leaves none for a renewal.
    advance(visibility).await;
    let new = accept().await.expect("it came back");
    assert_eq!(new.attempt(), 3);

    let error = old.complete().await.expect_err("lost");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{:?}",
        error.kind
    );
    assert_eq!(count(&service, "orders").await, 1);
    new.complete().await.expect("completed");
    assert_eq!(count(&service, "orders").await, 0);
}

#[tokio::test(start_paused = true)]
async fn settling_after_another_service_received_the_message_changes_nothing() {
    let storage_clock = Arc::new(TokioClock::new());
    let backend = Arc::new(MemoryBackend::new(storage_clock.clone()));
    let connect = async |clock: Arc<dyn Clock>| {
        let service = QueueService::with_backend(backend.clone()).clock(clock);
        service.connect().await.expect("connects")
    };
    // Its clock stands still: it renews nothing and does not notice that its lease has run out.
    let suspended = connect(Arc::new(ManualClock::new())).await;
    let other = connect(storage_clock).await;

    suspended.submit(order(1)).await.expect("submitted");
    let accept = |service: &QueueService| {
        let accept = service.accept::<Order>();
        async { accept.await.expect("no error") }
    };
    let first = accept(&suspended).await.expect("a message");
    assert!(accept(&other).await.is_none());
    advance(Duration::from_secs(31)).await;
    let second = accept(&other).await.expect("its lease ran out");

    let error = first.complete().await.expect_err("lost");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{:?}",
        error.kind
    );
    let error = error.delivery.release().await.expect_err("lost");
    assert!(matches!(error.kind, SettleErrorKind::LeaseLost(_)));
    assert_eq!(count(&other, "orders").await, 1);
    assert!(accept(&other).await.is_none(), "it is still leased");
    second.complete().await.expect("the owner is unharmed");
    assert_eq!(count(&other, "orders").await, 0);
}

#[tokio::test(start_paused = true)]
async fn follow_ups_go_with_the_acknowledgement_and_repeat_their_ids() {
    let service = testing::service().await;
    service
        .submit(order(1))
        .request_id("r-9")
        .await
        .expect("submitted");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let delivery = accepted::<Order>(&service).await;
        ids.push(
            delivery
                .submit(Invoice { order: 1 })
                .await
                .expect("submitted")
                .id,
        );
        drop(delivery);
        advance(Duration::from_secs(31)).await;
    }
    assert_eq!(ids[0], ids[1]);

    let delivery = accepted::<Order>(&service).await;
    let settled = delivery
        .settle(Disposition::complete().then(&Invoice { order: 1 }))
        .await
        .expect("settled");
    assert_eq!(settled, Settled::Completed);
    assert_eq!(count(&service, "orders").await, 0);
    for _ in 0..3 {
        let invoice = accepted::<Invoice>(&service).await;
        assert_eq!(invoice.envelope().id, ids[0]);
        assert_eq!(invoice.envelope().request_id.as_str(), "r-9");
        invoice.complete().await.expect("completed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_forgiven() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    for _ in 0..20 {
        let delivery = accepted::<Order>(&service).await;
        assert_eq!(delivery.attempt(), 1);
        delivery.release().await.expect("released");
    }
}

#[tokio::test(start_paused = true)]
async fn what_expired_while_it_was_held_is_said_to_have_expired() {
    let service = testing::service().await;
    let minute = Duration::from_secs(60);
    service
        .submit(order(1))
        .time_to_live(minute)
        .await
        .expect("submitted");
    let delivery = accepted::<Order>(&service).await;
    advance(minute).await;
    let error = delivery.complete().await.expect_err("expired");
    assert!(
        matches!(error.kind, SettleErrorKind::Expired(_)),
        "{:?}",
        error.kind
    );
}

#[tokio::test]
async fn settings_are_checked() {
    let service = memory().await;
    for (accept, part) in [
        (
            service.accept::<Order>().poison_threshold(0),
            "poison threshold is 0",
        ),
        (
            service.accept::<Order>().visibility_timeout(Duration::ZERO),
            "visibility timeout is 0ns",
        ),
    ] {
        let error = accept.await.expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_sets_threshold_and_timeout() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let mut metadata = queue_runtime::backend::Metadata::new();
    metadata.insert("PoisonThreshold", "1").expect("allowed");
    metadata.insert("DefaultTimeout", "7").expect("allowed");
    let queue = service.any_queue("orders").expect("a name");
    queue.set_metadata(&metadata).await.expect("set");
    drop(accepted::<Order>(&service).await);
    advance(Duration::from_secs(6)).await;
    assert!(service.accept::<Order>().await.expect("no error").is_none());
    advance(Duration::from_secs(1)).await;
    let delivery = accepted::<Order>(&service).await;
    let settled = delivery
        .settle(Disposition::retry("no"))
        .await
        .expect("settled");
    assert_eq!(settled, Settled::Poisoned(PoisonReason::Failed));
}

#[tokio::test(start_paused = true)]
async fn the_retry_policy_of_an_accept_decides_the_delay_after_a_failure() {
    const DELAY: Duration = Duration::from_secs(300);
    let moment = Duration::from_millis(1);
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    for attempt in 1..=3 {
        let accept = service.accept::<Order>().retry(RetryPolicy::fixed(DELAY));
        let delivery = accept.await.expect("no error").expect("it is visible");
        assert_eq!(delivery.attempt(), attempt);
        let settled = delivery.retry("no luck").await.expect("settled");
        let Settled::Retried { after, .. } = settled else {
            panic!("{settled:?}")
        };
        assert_eq!(after, DELAY);
        advance(DELAY - moment).await;
        assert!(service.accept::<Order>().await.expect("no error").is_none());
        advance(moment).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_poison_queue_of_an_accept_gets_its_rejected_messages() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = service
        .accept::<Order>()
        .poison_queue("broken-orders")
        .expect("a name");
    let delivery = accept.await.expect("no error").expect("a message");
    delivery.reject("out of stock").await.expect("settled");
    let poisoned = poison(&service, "broken-orders").await;
    let [(record, _)] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!(record.reason, PoisonReason::Rejected);
    assert_eq!(record.error.as_deref(), Some("out of stock"));
}

#[tokio::test(start_paused = true)]
async fn wait_waits_for_a_message() {
    let service = testing::service().await;
    let queue = service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
    let (wait, early) = (Duration::from_secs(60), Duration::from_secs(10));
    let started = Instant::now();
    let nothing = service.accept::<Order>().wait(wait).await;
    assert!(nothing.expect("no error").is_none());
    assert_eq!(started.elapsed(), wait);

    let accept = service.accept::<Order>().wait(wait);
    let waiting = tokio::spawn(accept.into_future());
    tokio::time::sleep(early).await;
    assert!(!waiting.is_finished());
    let started = Instant::now();
    service.submit(order(3)).await.expect("submitted");
    let delivery = guarded(waiting).await.expect("it ends").expect("no panic");
    let delivery = delivery.expect("no error").expect("a message");
    assert_eq!(delivery.number, 3);
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_secs(1), "after {elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_whose_messages_are_announced_is_hardly_polled() {
    let service = testing::service().await;
    let queue = service.any_queue("orders").expect("a name");
    queue.create().await.expect("created");
    let wait = Duration::from_secs(60);
    let nothing = service.accept::<Order>().wait(wait).await;
    assert!(nothing.expect("no error").is_none());
    let used = service.meter().total();
    assert!(used.of(TransactionKind::EmptyReceive) <= 7, "{used}");
    assert!(used.of(TransactionKind::Properties) <= 8, "{used}");

    // Nobody announces the end of a lease.
    let lease = Duration::from_secs(13);
    let held = service.accept::<Order>().visibility_timeout(lease);
    service.submit(order(3)).await.expect("submitted");
    let started = Instant::now();
    drop(held.await.expect("no error").expect("a message"));
    let again = service.accept::<Order>().wait(wait).await;
    let again = again.expect("no error").expect("its lease has ended");
    assert_eq!(again.dequeue_count(), 2);
    let took = started.elapsed();
    assert!(took < lease + Duration::from_secs(2), "after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_is_never_answered_is_given_up() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    faults.fail_next(1, Operation::Receive, Fault::Stalled);
    let error = service.accept::<Order>().await.expect_err("no answer");
    let AcceptErrorKind::Storage(error) = error.kind else {
        panic!("{error:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn metadata_that_is_never_answered_is_given_up() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    faults.fail_next(1, Operation::Properties, Fault::Stalled);
    let error = guarded(tokio::spawn(service.accept::<Order>().into_future()));
    let error = error.await.expect("it ends").expect("no panic");
    let Err(AcceptError {
        kind: AcceptErrorKind::Storage(error),
        ..
    }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(faults.injected(Operation::Properties), 1);
}

#[tokio::test(start_paused = true)]
async fn an_accept_that_is_dropped_hands_back_what_it_would_have_received() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    faults.fail_next(1, Operation::Receive, Fault::AnswerStalled);
    let accept = service.accept::<Order>().into_future();
    let dropped = tokio::time::timeout(Duration::from_secs(1), accept).await;
    assert!(dropped.is_err(), "the receive is not answered yet");
    faults.release();
    let accepted = service.accept::<Order>().wait(Duration::from_secs(1)).await;
    let delivery = accepted.expect("no error").expect("handed back");
    assert_eq!((delivery.attempt(), delivery.dequeue_count()), (1, 2));
    assert_eq!(delivery.envelope().attempts.forgiven, 1);
}
