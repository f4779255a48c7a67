//! Which messages are moved to the poison queue, with which record, and how redrive moves them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use queue_runtime::backend::{Backend, BackendExt as _, NewMessage};
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::receive::{Poisoned, Settled};
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::wire::Body;
use queue_runtime::{Delivery, Disposition, ErrorKind, Failure, QueueService, Received};
use queue_tests::orders::{NewerOrder, Order, order};
use tokio::time::{Instant, advance};

use crate::support::remote::Remote;
use crate::support::{accepted, count, poison, stop};

#[tokio::test(start_paused = true)]
async fn failures_are_counted_and_the_last_one_is_poison() {
    let service = testing::service().await;
    service.submit(order(1)).id("m-1").await.expect("submitted");
    for attempt in 1..=3 {
        let accept = service.accept::<Order>().poison_threshold(3);
        let delivery = accept.await.expect("no error").expect("a message");
        assert_eq!(delivery.attempt(), attempt);
        let error = format!("no\nluck {attempt}");
        let settled = delivery
            .settle(Disposition::retry(error))
            .await
            .expect("settled");
        assert_eq!(
            matches!(settled, Settled::Poisoned(PoisonReason::Failed)),
            attempt == 3,
            "{settled:?}"
        );
        advance(Duration::from_secs(600)).await;
    }
    assert_eq!(count(&service, "orders").await, 0);
    let poisoned = poison(&service, "orders-poison").await;
    let [(record, Body::Event(event))] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!((record.attempts, record.queue.as_str()), (3, "orders"));
    assert_eq!(record.error.as_deref(), Some(r"no\nluck 3"));
    assert_eq!(event.envelope.id.as_str(), "m-1");

    let redrive = service
        .any_queue("orders-poison")
        .expect("a name")
        .redrive();
    assert_eq!(redrive.dry_run().await.expect("peeks").redriven, 1);
    assert_eq!(redrive.run().await.expect("redrives").redriven, 1);
    assert_eq!(count(&service, "orders-poison").await, 0);
    let again = accepted::<Order>(&service).await;
    assert_eq!((again.attempt(), again.envelope().id.as_str()), (1, "m-1"));
    assert!(again.envelope().poison.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_move_that_is_refused_for_a_while_is_no_further_attempt() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    let runs = Arc::new(AtomicU32::new(0));
    let fail = async |runs: Arc<AtomicU32>, _: Received<Order>| {
        let run = runs.fetch_add(1, Ordering::Relaxed) + 1;
        Err::<(), _>(Failure::retry(format!("no luck {run}")))
    };
    let listener = service.listener_with(Arc::clone(&runs), fail);
    // The first one, and those of the next receives.
    faults.fail_next(5, Operation::Apply, Fault::Refused(ErrorKind::Denied));
    let listener = listener.poison_threshold(2);
    let listener = listener.start().expect("starts");
    testing::drain([&listener]).await.expect("moved in the end");
    assert_eq!(faults.injected(Operation::Apply), 5);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    let poisoned = poison(&service, "orders-poison").await;
    let [(record, _)] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!((record.reason, record.attempts), (PoisonReason::Failed, 2));
    assert_eq!(record.error.as_deref(), Some("no luck 2"));
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_has_crashed_keeps_its_last_error() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = || service.accept::<Order>().poison_threshold(2);
    let first = accept().await.expect("no error").expect("a message");
    let retried = first.retry_after(Duration::ZERO, "no luck").await;
    retried.expect("put back");
    for _ in 0..2 {
        drop(accept().await.expect("no error").expect("a message"));
        advance(Duration::from_secs(31)).await;
    }
    assert!(accept().await.expect("no error").is_none());
    let poisoned = poison(&service, "orders-poison").await;
    let [(record, _)] = &poisoned[..] else {
        panic!("{poisoned:?}")
    };
    assert_eq!((record.reason, record.attempts), (PoisonReason::Crashed, 3));
    let expected = "2 attempts ended without a record, as when a process is killed; 1 failed, the last one with: no luck";
    assert_eq!(record.error.as_deref(), Some(expected));
}

#[tokio::test(start_paused = true)]
async fn crashes_get_one_more_marked_run() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = || service.accept::<Order>().poison_threshold(2);
    for attempt in 1..=3 {
        let crashed = accept().await.expect("no error").expect("a message");
        assert_eq!(crashed.attempt(), attempt);
        assert_eq!(crashed.envelope().attempts.last_chance, attempt == 3);
        drop(crashed);
        advance(Duration::from_secs(31)).await;
    }
    assert!(accept().await.expect("no error").is_none());
    let poisoned = poison(&service, "orders-poison").await;
    assert_eq!(
        (poisoned[0].0.reason, poisoned[0].0.attempts),
        (PoisonReason::Crashed, 3)
    );
}

/// Crashes until the next run is the last chance, and fails the mark of that with this fault.
/// How often `on_poison` was called, and how often with the message decoded.
#[derive(Default)]
struct Calls {
    called: AtomicU32,
    decoded: AtomicU32,
}

impl Calls {
    fn count(&self, poisoned: &Poisoned<Order>) {
        self.called.fetch_add(1, Ordering::Relaxed);
        let decoded = poisoned.message.is_some().into();
        self.decoded.fetch_add(decoded, Ordering::Relaxed);
    }

    fn get(&self) -> (u32, u32) {
        let get = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        (get(&self.called), get(&self.decoded))
    }
}

/// Accepts the order that has crashed too often eleven times, while these operations fail, and then once more.
async fn move_at_last(failing: &[Operation], expected: impl Fn(u32) -> (u32, u32)) {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    let calls = Arc::new(Calls::default());
    let accept = || {
        let calls = Arc::clone(&calls);
        let accept = service.accept::<Order>().poison_threshold(2);
        accept.on_poison(move |poisoned| {
            calls.count(&poisoned);
            None
        })
    };
    for _ in 0..3 {
        drop(
            accept()
                .await
                .expect("no error")
                .expect("it is not poison yet"),
        );
        advance(Duration::from_secs(3600)).await;
    }
    for operation in failing {
        faults.fail_every(*operation, Fault::Refused(ErrorKind::Unreachable));
    }
    for moves in 1..=11 {
        accept().await.expect_err("the move fails");
        advance(Duration::from_secs(3600)).await;
        assert_eq!(calls.get(), expected(moves));
    }
    faults.heal();
    assert!(accept().await.expect("moved").is_none());
    assert_eq!(calls.get(), expected(12));
    let moved = poison(&service, "orders-poison").await;
    assert_eq!(moved[0].0.reason, PoisonReason::Crashed);
    assert_eq!(count(&service, "orders").await, 0);
}

/// What ends without a trace, as here because nothing can be written, looks like a process that has ended.
#[tokio::test(start_paused = true)]
async fn a_message_that_ends_the_process_in_on_poison_is_moved_in_the_end() {
    let failing = [Operation::Apply, Operation::Update];
    move_at_last(&failing, |moves| (moves.min(10), moves.min(3))).await;
}

#[tokio::test(start_paused = true)]
async fn a_move_that_the_storage_refuses_is_not_taken_for_the_end_of_a_process() {
    move_at_last(&[Operation::Apply], |moves| (moves, moves)).await;
}

async fn accept_with_failing_mark(fault: Fault) -> (testing::TestService, Option<Delivery<Order>>) {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = || service.accept::<Order>().poison_threshold(2);
    for _ in 0..2 {
        drop(accept().await.expect("no error").expect("a message"));
        advance(Duration::from_secs(31)).await;
    }
    faults.fail_next(1, Operation::Update, fault);
    let accepted = accept().await.expect("no error");
    assert_eq!(faults.injected(Operation::Update), 1);
    (service, accepted)
}

#[tokio::test(start_paused = true)]
async fn the_last_chance_is_taken_even_if_it_cannot_be_marked() {
    for fault in [Fault::Refused(ErrorKind::Denied), Fault::AnswerLost] {
        let (_service, accepted) = accept_with_failing_mark(fault).await;
        assert_eq!(accepted.expect("it runs").attempt(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_keeps_the_last_chance() {
    let service = testing::service().await;
    service.submit(order(1)).await.expect("submitted");
    let accept = || service.accept::<Order>().poison_threshold(2);
    for _ in 0..2 {
        drop(accept().await.expect("no error").expect("a message"));
        advance(Duration::from_secs(31)).await;
    }
    for _ in 0..2 {
        let marked = accept().await.expect("no error").expect("a message");
        assert!(marked.envelope().attempts.last_chance);
        marked.release().await.expect("released");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_another_consumer_has_at_its_mark_is_not_handled() {
    let held_for = Duration::from_secs(60);
    let (service, accepted) = accept_with_failing_mark(Fault::LeaseLost(held_for)).await;
    assert!(accepted.is_none());
    assert_eq!(count(&service, "orders").await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_put_back_past_the_expiry_is_poison() {
    let service = testing::service().await;
    let hour = Duration::from_secs(3600);
    service
        .submit(order(1))
        .time_to_live(hour)
        .await
        .expect("submitted");
    let delivery = accepted::<Order>(&service).await;
    let settled = delivery
        .settle(Disposition::retry_after(hour, "later"))
        .await
        .expect("settled");
    assert_eq!(settled, Settled::Poisoned(PoisonReason::Expiring));
    assert_eq!(poison(&service, "orders-poison").await.len(), 1);
}

/// On Azure, each request costs. The first moves find the queue missing; the others begin while it is created, or after
/// that.
#[tokio::test(start_paused = true)]
async fn messages_moved_at_once_create_their_poison_queue_once() {
    let (_, faults) = testing::service_with_faults().await;
    let service = QueueService::with_backend(Arc::new(Remote::over(faults.clone())))
        .clock(Arc::new(TokioClock::new()))
        .on_current_runtime();
    let service = service.connect().await.expect("connects");
    let mut orders = Vec::new();
    for number in 0..20 {
        service.submit(order(number)).await.expect("submitted");
        orders.push(accepted::<Order>(&service).await);
    }
    let calls = || {
        (
            faults.calls(Operation::CreateQueue),
            faults.calls(Operation::Put),
        )
    };
    let before = calls();
    for operation in [Operation::CreateQueue, Operation::Put] {
        faults.fail_every(operation, Fault::Delayed(Duration::from_secs(1)));
    }
    let reject = async |number: u32, order: Delivery<Order>| {
        tokio::time::sleep(number * Duration::from_millis(110)).await;
        order.reject("no").await.expect("moved");
    };
    let rejects = orders
        .into_iter()
        .zip(0..)
        .map(|(order, number)| reject(number, order));
    join_all(rejects).await;
    let (creations, puts) = (calls().0 - before.0, calls().1 - before.1);
    assert_eq!(creations, 1);
    // A put is carried out after a second, so those of the second before the creation fail.
    assert_eq!(puts, 20 + 10);
    assert_eq!(count(&service, "orders-poison").await, 20);
    assert_eq!(count(&service, "orders").await, 0);
}

/// Two events of one id from two sources, as nobody here writes them.
async fn put_foreign(service: &QueueService, backend: &dyn Backend, source: &str, kind: &str) {
    let subject = r#""subject":"/blobs/x.jpg""#;
    let body = format!(
        r#"{{"specversion":"1.0","id":"1","source":"{source}","type":"{kind}",{subject},"data":{{"number":1,"note":""}}}}"#
    );
    service
        .any_queue("orders")
        .expect("a name")
        .create()
        .await
        .expect("created");
    let message = NewMessage::new(body.into_bytes());
    let queue = "orders".parse().expect("a name");
    backend.put(&queue, message).await.expect("put");
}

#[tokio::test(start_paused = true)]
async fn redrive_tells_events_of_one_id_apart() {
    let (service, backend) = testing::service_with_faults().await;
    put_foreign(&service, &backend, "/shop/a", "nobody").await;
    put_foreign(&service, &backend, "/shop/b", "nobody").await;
    assert!(service.accept::<Order>().await.expect("no error").is_none());
    let redrive = service
        .any_queue("orders-poison")
        .expect("a name")
        .redrive();
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.duplicates), (2, 0));
    assert_eq!(count(&service, "orders").await, 2);
}

#[tokio::test(start_paused = true)]
async fn redrive_leaves_what_the_filter_leaves() {
    let (service, backend) = testing::service_with_faults().await;
    for (source, kind) in [("/a", "nobody"), ("/b", "somebody")] {
        put_foreign(&service, &backend, source, kind).await;
    }
    assert!(service.accept::<Order>().await.expect("no error").is_none());
    let poison = service.any_queue("orders-poison").expect("a name");
    let redrive = poison
        .redrive()
        .filter(|envelope, _| envelope.kind == "somebody");
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.filtered), (1, 1));
    assert_eq!(
        poison.peek(2).await.expect("peeks").len(),
        1,
        "it is visible again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_subject_from_elsewhere_is_no_key() {
    let (service, backend) = testing::service_with_faults().await;
    put_foreign(&service, &backend, "/a", "order").await;
    let delivery = accepted::<Order>(&service).await;
    let key = delivery.idempotency_key();
    assert!(key.as_str().starts_with(r#"["order","#), "{key}");
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_waits_for_a_newer_program_and_then_is_poison() {
    let service = testing::service().await;
    service
        .submit(NewerOrder { number: 1 })
        .await
        .expect("submitted");
    let mut looks = 0;
    while count(&service, "orders").await > 0 {
        assert!(service.accept::<Order>().await.expect("no error").is_none());
        advance(Duration::from_secs(600)).await;
        looks += 1;
        assert!(looks < 1000, "it never runs out of patience");
    }
    assert!(
        looks > 140,
        "24 hours take more than {looks} looks of ten minutes"
    );
    let poisoned = poison(&service, "orders-poison").await;
    assert_eq!(poisoned[0].0.reason, PoisonReason::NewerVersion);

    service
        .any_queue("orders-poison")
        .expect("a name")
        .redrive()
        .run()
        .await
        .expect("redriven");
    let upgraded = service
        .accept::<NewerOrder>()
        .await
        .expect("no error")
        .expect("it survived");
    assert_eq!((upgraded.number, upgraded.attempt()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_version_patience_of_an_accept_replaces_the_default() {
    use queue_tests::HOUR;

    // The default is 24 hours.
    for patience in [HOUR, 48 * HOUR] {
        let service = testing::service().await;
        let submitted = service.submit(NewerOrder { number: 1 }).await;
        submitted.expect("submitted");
        let start = Instant::now();
        while count(&service, "orders").await > 0 {
            let waited = start.elapsed();
            // It may be postponed for up to an hour at a time.
            assert!(waited < patience + 2 * HOUR, "it is no poison yet");
            let accept = service.accept::<Order>().version_patience(patience);
            assert!(accept.await.expect("no error").is_none());
            advance(Duration::from_secs(600)).await;
        }
        let waited = start.elapsed();
        assert!(waited >= patience, "it was poison after {waited:?}");
        let poisoned = poison(&service, "orders-poison").await;
        assert_eq!(poisoned[0].0.reason, PoisonReason::NewerVersion);
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_patience_of_a_listener_replaces_the_default() {
    const PATIENCE: Duration = Duration::from_secs(600);
    let service = testing::service().await;
    let start = Instant::now();
    let submitted = service.submit(NewerOrder { number: 1 }).await;
    submitted.expect("submitted");
    let listener = service
        .listener(async |_: Received<Order>| ())
        .version_patience(PATIENCE)
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("within an hour");
    assert_eq!((drained.completed(), drained.poisoned()), (0, 1));
    let waited = start.elapsed();
    assert!(waited >= PATIENCE, "it was poison after {waited:?}");
    let poisoned = poison(&service, "orders-poison").await;
    assert_eq!(poisoned[0].0.reason, PoisonReason::NewerVersion);
    stop(listener).await;
}
