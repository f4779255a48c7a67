//! What a redrive does to each message, and what it leaves alone, on storage that can be browsed and elsewhere.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_runtime::backend::{Backend, BackendExt as _, MessageState, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::listener::DrainEnd;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::service::redrive::{Redrive, RedriveOutcome};
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::wire::RAW_KIND;
use queue_runtime::{AnyQueue, ErrorKind, QueueName, QueueService, Received};
use queue_tests::orders::{Order, order};
use queue_tests::{HOUR, SECOND};
use tokio::time::{Instant, advance, sleep};

use crate::redrive::fixture::{poison, poison_event, storages};
use crate::support::count;
use crate::support::remote::Remote;
use crate::support::storage::Storage;

/// Moves so many orders to the poison queue, each with its number as the error.
async fn poisoned(service: &QueueService, orders: u32) {
    for number in 0..orders {
        service.submit(order(number)).await.expect("submitted");
        let delivery = service.accept::<Order>().await.expect("no error");
        let delivery = delivery.expect("an order");
        let rejected = delivery.reject(format!("error {number}")).await;
        rejected.expect("moved to the poison queue");
    }
}

#[tokio::test(start_paused = true)]
async fn each_filter_admits_what_it_says() {
    type Narrow = fn(Redrive) -> Redrive;
    let filters: [(Narrow, usize); 15] = [
        (|all| all, 4),
        (|all| all.id("1"), 1),
        (|all| all.id("1").id("2"), 1),
        (|all| all.id("1").kind("order"), 0),
        (|all| all.kind("order"), 2),
        (|all| all.kind(RAW_KIND), 1),
        (|all| all.kind("order").kind(RAW_KIND), 3),
        (|all| all.reason(PoisonReason::Rejected), 2),
        (|all| all.reason(PoisonReason::Undecodable), 2),
        (|all| all.reason(PoisonReason::Crashed), 0),
        (|all| all.error_contains("error 1"), 1),
        (|all| all.error_contains("error").error_contains("1"), 1),
        (|all| all.older_than(HOUR), 1),
        (|all| all.younger_than(HOUR), 3),
        (|all| all.filter(|_, record| record.raw), 1),
    ];
    for (service, backend) in storages().await {
        poisoned(&service, 1).await;
        advance(HOUR).await;
        poisoned(&service, 1).await;
        for (number, (narrow, admitted)) in filters.into_iter().enumerate() {
            for body in [
                "no event",
                r#"{"specversion":"1.0","id":"1","source":"/s","type":"other","data":1}"#,
            ] {
                let orders = "orders".parse().expect("a name");
                let put = backend.put(&orders, NewMessage::new(body)).await;
                put.expect("put");
                let accepted = service.accept::<Order>().await;
                assert!(accepted.is_ok_and(|order| order.is_none()), "it is poison");
            }
            let redrive = narrow(poison(&service).redrive());
            let redriven = redrive.run().await.expect("redriven");
            let counts = (redriven.redriven, redriven.filtered);
            assert_eq!(counts, (admitted, 4 - admitted), "filter {number}");

            // Everything is moved to the poison queue again, for the next filter.
            let old = service.any_queue("orders").expect("a name");
            old.clear().await.expect("cleared");
            poison(&service).clear().await.expect("cleared");
            poisoned(&service, 1).await;
            advance(HOUR).await;
            service.submit(order(1)).await.expect("submitted");
            let again = service.accept::<Order>().await.expect("no error");
            let again = again.expect("an order");
            again.reject("error 1").await.expect("moved");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_looks_at_everything_that_can_be_browsed_and_changes_nothing() {
    for (can_browse, (service, backend)) in [true, false].into_iter().zip(storages().await) {
        poisoned(&service, 300).await;
        let redrive = poison(&service).redrive().error_contains("1");
        let planned = redrive.dry_run().await.expect("planned");
        let seen = planned.redriven + planned.filtered;
        let expected = if can_browse { (300, 0) } else { (256, 44) };
        assert_eq!((seen, planned.unseen), expected);
        assert_eq!(
            backend.calls(Operation::Receive),
            300,
            "those of the orders"
        );
        assert_eq!(count(&service, "orders-poison").await, 300);
        if can_browse {
            assert_eq!(redrive.run().await.expect("redriven"), planned);
        }

        let by_age = poison(&service).redrive().older_than(HOUR).dry_run().await;
        if can_browse {
            assert_eq!(by_age.expect("planned").redriven, 0)
        } else {
            let error = by_age.expect_err("a peek does not tell the time").error;
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_has_all_its_attempts() {
    for (service, backend) in storages().await {
        poisoned(&service, 3).await;
        for _ in 0..4 {
            let redrive = poison(&service).redrive().filter(|_, _| false);
            assert_eq!(redrive.run().await.expect("looked at").filtered, 3);
        }
        backend.fail_every(Operation::Apply, Fault::Refused(ErrorKind::TooLarge));
        for _ in 0..4 {
            let redriven = poison(&service).redrive().run().await;
            assert_eq!(redriven.expect("refused").refused, 3);
        }
        backend.fail_every(Operation::Apply, Fault::Refused(ErrorKind::Denied));
        for _ in 0..4 {
            let stopped = poison(&service).redrive().run().await;
            let stopped = stopped.expect_err("the first move stops it");
            assert_eq!(
                (stopped.error.kind(), stopped.unknown),
                (ErrorKind::Denied, 0)
            );
            // What an error leaves is handed back in the background.
            sleep(SECOND).await;
            assert_eq!(poison(&service).peek(3).await.expect("peeked").len(), 3);
        }
        backend.heal();
        let repair = service
            .queue_named::<Order>("orders-poison")
            .expect("a name");
        let mut deliveries = Vec::new();
        for _ in 0..3 {
            let accept = repair
                .accept()
                .poison_threshold(2)
                .poison_queue("hopeless")
                .expect("a name");
            deliveries.push(accept.await.expect("no error").expect("an order"));
        }
        for delivery in deliveries {
            assert_eq!(delivery.attempt(), 1);
            let retried = delivery.retry("not yet").await;
            retried.expect("the first attempt of two");
        }
    }
}

/// The first of two receives was answered when the redrive is dropped.
#[tokio::test(start_paused = true)]
async fn an_interrupted_one_hands_back_what_it_holds() {
    let (service, backend) = Storage::new().connect().await;
    poisoned(&service, 300).await;
    backend.fail_every(Operation::Apply, Fault::Delayed(SECOND));
    let redrive = poison(&service).redrive();
    let dropped = tokio::time::timeout(5 * SECOND / 2, redrive.run()).await;
    assert!(dropped.is_err(), "it takes 300 seconds");
    backend.heal();
    sleep(SECOND).await;
    let visible = |queue: AnyQueue| async move { queue.peek(256).await.expect("peeked").len() };
    let moved = count(&service, "orders").await;
    assert_eq!(moved, 2);
    // The third was being moved: nobody knows whether it was, so it is not handed back.
    let all = count(&service, "orders-poison").await;
    assert_eq!((all, visible(poison(&service)).await), (298, 256));
    let rest = poison(&service).redrive().run().await.expect("redriven");
    assert_eq!(rest.redriven, 297);
}

#[tokio::test(start_paused = true)]
async fn invisible_messages_are_left_and_those_taken_meanwhile_too() {
    let (service, backend) = Storage::new().browsable().connect().await;
    poisoned(&service, 5).await;
    let queue = poison(&service);
    let held = backend
        .receive(queue.name(), 1, HOUR)
        .await
        .expect("received");
    assert_eq!(held.len(), 1);
    backend.fail_next(1, Operation::Apply, Fault::Delayed(SECOND));
    let redrive = queue.redrive();
    let (redriven, taken) = tokio::join!(redrive.run(), async {
        sleep(SECOND / 2).await;
        backend
            .receive(queue.name(), 1, HOUR)
            .await
            .expect("received")
    });
    assert_eq!(taken.len(), 1);
    let redriven = redriven.expect("redriven");
    assert_eq!(
        (redriven.redriven, redriven.hidden, redriven.taken),
        (3, 1, 1)
    );
    assert_eq!(count(&service, "orders-poison").await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_its_own_queue_refuses_stays_and_stops_nothing() {
    let storage = || Storage::new().refusing("orders", ErrorKind::TooLarge);
    for storage in [storage().browsable(), storage()] {
        let (service, backend) = storage.connect().await;
        let queue = poison(&service);
        queue.create().await.expect("created");
        for (number, to) in ["orders", "others", "orders", "others"].iter().enumerate() {
            let body = poison_event(&number.to_string(), to);
            let put = backend.put(queue.name(), NewMessage::new(body)).await;
            put.expect("put");
        }
        let steps = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&steps);
        let others = QueueName::from_static("others");
        let redrive = queue
            .redrive()
            .allow([others])
            .expect("a name")
            .each(move |step| {
                let id = step.envelope.map(|envelope| envelope.id.to_string());
                seen.lock()
                    .expect("no panic")
                    .push((id, step.outcome.clone()));
            });
        let redriven = redrive.run().await.expect("redriven");
        assert_eq!((redriven.redriven, redriven.refused), (2, 2));
        assert_eq!(count(&service, "orders-poison").await, 2);
        let mut steps = steps.lock().expect("no panic");
        steps.sort_by(|one, other| one.0.cmp(&other.0));
        let refused = |at: usize| {
            let (id, RedriveOutcome::Refused(error)) = &steps[at] else {
                panic!("{steps:?}")
            };
            assert_eq!(
                (id.as_deref(), error.kind()),
                (Some(&*at.to_string()), ErrorKind::TooLarge)
            );
        };
        refused(0);
        refused(2);
        let moved = |at: usize| matches!(&steps[at].1, RedriveOutcome::Redriven(to) if to.as_str() == "others");
        assert!(moved(1) && moved(3) && steps.len() == 4, "{steps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_as_slow_as_it_is_told_to_be() {
    for interval in [Duration::from_millis(100), 40 * SECOND, 600 * SECOND] {
        for (service, _) in storages().await {
            poisoned(&service, 5).await;
            let started = Instant::now();
            let redriven = poison(&service).redrive().interval(interval).run().await;
            assert_eq!(
                redriven.expect("redriven").redriven,
                5,
                "every {interval:?}"
            );
            let took = started.elapsed();
            assert!(took >= 4 * interval && took < 5 * interval, "{took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_step_is_unknown_and_another_redrive_doubles_nothing() {
    for fault in [Fault::AnswerLost, Fault::RequestLost] {
        let (service, backend) = Storage::new().browsable().connect().await;
        poisoned(&service, 50).await;
        backend.fail_next(1, Operation::Apply, Fault::Delayed(SECOND));
        backend.fail_next(1, Operation::Apply, fault);
        let stopped = poison(&service)
            .redrive()
            .run()
            .await
            .expect_err("no answer");
        assert_eq!((stopped.so_far.redriven, stopped.unknown), (32, 18));
        poison(&service).redrive().run().await.expect("redriven");
        assert_eq!(count(&service, "orders").await, 50);
        assert_eq!(count(&service, "orders-poison").await, 0);
    }
}

/// Created again, it would be empty, and its messages would be said to be taken by another.
#[tokio::test(start_paused = true)]
async fn a_poison_queue_that_is_deleted_meanwhile_stops_a_redrive_and_stays_deleted() {
    let storages = [
        Storage::new().browsable(),
        Storage::new(),
        Storage::new().in_order(),
    ];
    for storage in storages {
        let (service, backend) = storage.connect().await;
        poisoned(&service, 3).await;
        let queue = poison(&service);
        backend.fail_next(1, Operation::Apply, Fault::Delayed(SECOND));
        let redrive = queue.redrive();
        let (stopped, ()) = tokio::join!(redrive.run(), async {
            sleep(SECOND / 2).await;
            backend.delete_queue(queue.name()).await.expect("deleted");
        });
        let stopped = stopped.expect_err("no poison queue");
        let missing = (stopped.error.kind(), stopped.error.queue());
        assert_eq!(missing, (ErrorKind::QueueNotFound, Some(queue.name())));
        assert_eq!(stopped.so_far.taken, 0);
        let queues = service.queues().await.expect("lists");
        assert!(!queues.contains(queue.name()), "{queues:?}");
    }
}

/// There is a copy on its own queue.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_put_and_not_deleted_is_unknown() {
    let (_, faults) = Storage::new().connect().await;
    let service = QueueService::with_backend(Arc::new(Remote::over(faults.clone())))
        .clock(Arc::new(TokioClock::new()))
        .on_current_runtime()
        .connect()
        .await
        .expect("connects");
    poisoned(&service, 3).await;
    faults.fail_next(1, Operation::Delete, Fault::Delayed(Duration::ZERO));
    faults.fail_next(1, Operation::Delete, Fault::Refused(ErrorKind::Denied));
    let stopped = poison(&service).redrive().run().await;
    let stopped = stopped.expect_err("denied");
    assert_eq!(stopped.error.kind(), ErrorKind::Denied);
    assert_eq!((stopped.so_far.redriven, stopped.unknown), (1, 1));
    assert_eq!(count(&service, "orders").await, 2);
    assert_eq!(count(&service, "orders-poison").await, 2);
}

#[tokio::test(start_paused = true)]
async fn single_messages_are_removed_in_any_state() {
    let service = testing::service().await;
    let orders = service.queue::<Order>().any();
    for number in 0..3 {
        let delay = if number == 2 { HOUR } else { Duration::ZERO };
        let submit = service.submit(order(number)).delay(delay);
        submit.await.expect("submitted");
    }
    let held = service.accept::<Order>().await.expect("no error");
    let held = held.expect("an order");
    let page = orders.browse(None, 2).await.expect("browsed");
    let next = orders.browse(page.next.as_ref(), 2).await.expect("browsed");
    assert!(next.next.is_none());
    let browsed: Vec<_> = [page.messages, next.messages].concat();
    let states: Vec<_> = browsed.iter().map(|message| message.state).collect();
    let expected = [
        MessageState::Visible,
        MessageState::Hidden,
        MessageState::Delayed,
    ];
    assert_eq!(states, expected);
    for message in &browsed {
        orders.delete_message(message).await.expect("removed");
    }
    let again = orders
        .delete_message(&browsed[0])
        .await
        .expect_err("it is gone");
    assert_eq!(again.kind(), ErrorKind::MessageNotFound);
    let error = held.retry("not yet").await.expect_err("it was removed");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{error}"
    );
    assert_eq!(count(&service, "orders").await, 0);

    let (elsewhere, _) = Storage::new().connect().await;
    let browsed = elsewhere
        .any_queue("orders")
        .expect("a name")
        .browse(None, 1)
        .await;
    assert_eq!(
        browsed.expect_err("not here").kind(),
        ErrorKind::Unsupported
    );
}

async fn fail(
    attempts: Arc<Mutex<Vec<usize>>>,
    order: Received<Order>,
) -> Result<(), &'static str> {
    attempts.lock().expect("no panic").push(order.attempt());
    Err("no")
}

#[tokio::test(start_paused = true)]
async fn attempts_are_kept_or_start_anew() {
    for (service, _) in storages().await {
        let handled: Arc<Mutex<Vec<usize>>> = Arc::default();
        let consume = async || {
            let listener = service.listener_with(Arc::clone(&handled), fail);
            let listener = listener.poison_threshold(3).create_queue().until_empty();
            let report = listener.start().expect("starts").drained().await;
            assert_eq!(report.end, DrainEnd::Empty);
            std::mem::take(&mut *handled.lock().expect("no panic"))
        };
        service.submit(order(1)).await.expect("submitted");
        assert_eq!(consume().await, [1, 2, 3]);
        let redriven = poison(&service).redrive().keep_attempts().run().await;
        assert_eq!(redriven.expect("redriven").redriven, 1);
        assert_eq!(consume().await, [4], "it had used them up");
        let redriven = poison(&service).redrive().keep_attempts().run().await;
        assert_eq!(redriven.expect("redriven").redriven, 1);
        assert_eq!(consume().await, [5]);
        let redriven = poison(&service).redrive().run().await;
        assert_eq!(redriven.expect("redriven").redriven, 1);
        assert_eq!(consume().await, [1, 2, 3]);

        // One that had some left goes on with those.
        poison(&service).clear().await.expect("cleared");
        poisoned(&service, 1).await;
        let redriven = poison(&service).redrive().keep_attempts().run().await;
        assert_eq!(redriven.expect("redriven").redriven, 1);
        assert_eq!(consume().await, [2, 3]);
    }
}
