//! Accepting several messages at a time, and as a stream.

use std::future::IntoFuture as _;

use futures_util::StreamExt as _;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::{AcceptError, AcceptErrorKind, Messages, SettleErrorKind};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{Delivery, ErrorKind, Message, QueueName, QueueService};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};

use serde::{Deserialize, Serialize};

use crate::support::jobs::{Job, Mood};
use crate::support::{count, guarded, numbers, poison};

async fn with_orders(numbers: std::ops::Range<u32>) -> QueueService {
    let service = testing::service().await;
    let submitted = service.submit_all(numbers.map(order)).await;
    submitted.expect("submitted");
    service.into()
}

#[tokio::test(start_paused = true)]
async fn as_many_are_accepted_as_there_are_and_not_more_than_asked_for() {
    let service = with_orders(0..7).await;
    let five = service.accept_many::<Order>(5).await.expect("accepted");
    assert_eq!(numbers(&five), [0, 1, 2, 3, 4]);
    let two = service.accept_many::<Order>(5).await.expect("accepted");
    assert_eq!(numbers(&two), [5, 6]);
    let none = service.accept_many::<Order>(5).await.expect("no error");
    assert!(none.is_empty());
    Delivery::complete_all(five.into_iter().chain(two))
        .await
        .expect("completed");
    assert_eq!(count(&service, "orders").await, 0);
}

#[tokio::test(start_paused = true)]
async fn more_than_one_receive_can_bring_are_accepted_with_several() {
    let service = with_orders(0..600).await;
    let most = service.backend().capabilities().max_receive;
    assert!((1..300).contains(&most), "{most} at a time");
    let all = service
        .accept_many::<Order>(10_000)
        .await
        .expect("accepted");
    assert_eq!(numbers(&all), Vec::from_iter(0..600));
}

#[tokio::test(start_paused = true)]
async fn the_first_messages_end_a_wait() {
    let service = with_orders(0..0).await;
    let waiting = service.accept_many::<Order>(5).wait(60 * SECOND);
    let waiting = tokio::spawn(async { waiting.await.map(|all| numbers(&all)) });
    tokio::time::sleep(SECOND).await;
    let submitted = service.submit_all([order(1), order(2)]).await;
    submitted.expect("submitted");
    let accepted = waiting.await.expect("no panic").expect("accepted");
    assert_eq!(accepted, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn none_at_a_time_is_refused() {
    let service = with_orders(0..1).await;
    let error = service.accept_many::<Order>(0).await.expect_err("none");
    assert!(matches!(error.kind, AcceptErrorKind::Setting(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("number of messages to accept"), "{text}");
    let first = service.messages::<Order>(0).next().await;
    let first = first.expect("an error");
    assert!(
        matches!(
            first,
            Err(AcceptError {
                kind: AcceptErrorKind::Setting(_),
                ..
            })
        ),
        "{first:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_lost_costs_only_its_message() {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit_all((0..4).map(order)).await;
    submitted.expect("submitted");
    let orders = service.accept_many::<Order>(4).await.expect("accepted");
    faults.fail_next(1, Operation::Delete, Fault::LeaseLost(30 * SECOND));
    let error = Delivery::complete_all(orders).await.expect_err("one fails");
    assert_eq!((error.completed, error.failed.len()), (3, 1), "{error}");
    let failed = &error.failed[0];
    assert!(matches!(failed.kind, SettleErrorKind::LeaseLost(_)));
    assert_eq!(failed.delivery.number, 0);
    let text = error.to_string();
    assert!(
        text.starts_with("failed to complete 1 of 4 messages: "),
        "{text}"
    );
    assert_eq!(count(&service, "orders").await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_handled_is_put_aside_and_the_others_are_accepted() {
    let service = with_orders(0..3).await;
    let job = service.submit(Job { mood: Mood::Good });
    job.to("orders").expect("a name").await.expect("submitted");
    let orders = service.accept_many::<Order>(8).await.expect("accepted");
    assert_eq!(numbers(&orders), [0, 1, 2]);
    let aside = poison(&service, "orders-poison").await;
    assert_eq!(aside.len(), 1);
    assert_eq!(aside[0].0.reason, PoisonReason::Undecodable);
}

/// A message that cannot be settled comes again with the others: they must not wait for it.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_settled_is_an_error_only_if_there_is_nothing_else() {
    for (orders, is_error) in [(2, false), (0, true)] {
        let (service, faults) = testing::service_with_faults().await;
        let job = service.submit(Job { mood: Mood::Good });
        let queue: QueueName = "orders".parse().expect("a name");
        job.to(queue).expect("a name").await.expect("submitted");
        if orders > 0 {
            let submitted = service.submit_all((0..orders).map(order)).await;
            submitted.expect("submitted");
        }
        faults.fail_next(1, Operation::Apply, Fault::Refused(ErrorKind::Denied));
        match service.accept_many::<Order>(8).await {
            Ok(accepted) => assert_eq!(accepted.len(), orders as usize),
            Err(AcceptError {
                kind: AcceptErrorKind::Settle(_),
                ..
            }) => assert!(is_error),
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(faults.injected(Operation::Apply), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_accept_that_is_dropped_hands_back_all_that_it_would_have_received() {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit_all((0..3).map(order)).await;
    submitted.expect("submitted");
    faults.fail_next(1, Operation::Receive, Fault::AnswerStalled);
    let accept = service.accept_many::<Order>(3);
    let dropped = tokio::time::timeout(SECOND, accept.into_future()).await;
    assert!(dropped.is_err(), "the receive is not answered yet");
    faults.release();
    tokio::time::sleep(SECOND).await;
    assert_handed_back(&service, 3).await;
}

async fn assert_handed_back(service: &QueueService, messages: usize) {
    let accepted = service.accept_many::<Order>(32).await.expect("accepted");
    assert_eq!(accepted.len(), messages);
    for delivery in &accepted {
        assert_eq!((delivery.attempt(), delivery.dequeue_count()), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_waits_when_the_queue_is_empty_and_goes_on() {
    let service = with_orders(0..5).await;
    let mut orders = service.messages::<Order>(2);
    let mut seen = Vec::new();
    for number in 0..8 {
        if number == 5 {
            let (service, later) = (service.clone(), (5..8).map(order));
            tokio::spawn(async move {
                tokio::time::sleep(3600 * SECOND).await;
                service.submit_all(later).await.expect("submitted");
            });
        }
        let next = guarded(orders.next()).await.expect("it goes on");
        let next = next.expect("it does not end").expect("accepted");
        seen.push(next.number);
        next.complete().await.expect("completed");
    }
    assert_eq!(seen, Vec::from_iter(0..8));
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_a_stream_that_is_dropped_is_handed_back() {
    let service = with_orders(0..5).await;
    let mut orders = service.messages::<Order>(5);
    let first = orders.next().await.expect("endless").expect("accepted");
    drop(orders);
    tokio::time::sleep(SECOND).await;
    assert_handed_back(&service, 4).await;
    first.complete().await.expect("it is its caller's");
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_stream_would_have_received_is_handed_back() {
    let (service, faults) = testing::service_with_faults().await;
    let submitted = service.submit_all((0..3).map(order)).await;
    submitted.expect("submitted");
    faults.fail_next(1, Operation::Receive, Fault::AnswerStalled);
    let mut orders = service.messages::<Order>(3);
    let next = tokio::time::timeout(SECOND, orders.next()).await;
    assert!(next.is_err(), "the receive is not answered yet");
    drop(orders);
    faults.release();
    tokio::time::sleep(SECOND).await;
    assert_handed_back(&service, 3).await;
}

fn ten_second_leases(service: &QueueService) -> Messages<Order> {
    let many = service.accept_many::<Order>(3);
    many.visibility_timeout(10 * SECOND).into_stream()
}

/// However long that is. The time for which a lease is renewed for its handler begins when the message leaves the stream.
#[tokio::test(start_paused = true)]
async fn what_waits_in_a_stream_stays_leased() {
    let service = with_orders(0..3).await;
    let mut orders = ten_second_leases(&service);
    for (number, takes) in [(0, 45), (1, 1_000), (2, 95)] {
        let next = orders.next().await.expect("endless").expect("accepted");
        assert_eq!((next.number, next.dequeue_count()), (number, 1));
        tokio::time::sleep(takes * SECOND).await;
        let others = service.accept_many::<Order>(3).await.expect("no error");
        let expected: &[u32] = if takes > 100 { &[1] } else { &[] };
        assert_eq!(numbers(&others), expected, "after {takes} s");
        for other in others {
            other.complete().await.expect("completed");
        }
        if takes < 100 {
            next.complete().await.expect("completed");
        }
    }
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "charges", wire = "bare", key_scope = "global")]
struct Charge {
    #[message(key)]
    order: u32,
}

/// Its receives would count, so a bare body waits in place for the end of the other's work: which is to be returned.
#[tokio::test(start_paused = true)]
async fn no_delivery_waits_for_another_of_the_same_call() {
    let service = testing::service().await;
    let charges = (0..4).map(|number| Charge { order: number / 2 });
    service.submit_all(charges).await.expect("submitted");
    let store = service.results().expect("memory has one");
    let accept = service.accept_many::<Charge>(4).idempotent(store);
    let accepted = guarded(accept.into_future()).await.expect("it ends");
    let accepted = accepted.expect("accepted");
    let orders: Vec<_> = accepted.iter().map(|one| one.order).collect();
    assert_eq!(orders, [0, 1]);
    Delivery::complete_all(accepted).await.expect("completed");
}

#[tokio::test(start_paused = true)]
async fn a_stream_reports_errors_and_pauses_after_them() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    faults.fail_next(5, Operation::Receive, Fault::Refused(ErrorKind::Denied));
    let mut orders = service.messages::<Order>(4);
    let started = tokio::time::Instant::now();
    for _ in 0..5 {
        let error = orders.next().await.expect("endless").expect_err("denied");
        assert!(
            matches!(error.kind, AcceptErrorKind::Storage(_)),
            "{error:?}"
        );
    }
    assert!(started.elapsed() > SECOND, "{:?}", started.elapsed());
    let next = orders.next().await.expect("endless").expect("accepted");
    assert_eq!(next.number, 1);
    next.complete().await.expect("completed");
}
