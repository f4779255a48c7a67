//! Messages that are submitted once by key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::error::{Operation, Outcome};
use queue_runtime::idempotency::MemoryResults;
use queue_runtime::policy::StorageRetry;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{ErrorKind, Message, QueueName, QueueService, Received};
use queue_tests::HOUR;
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::advance;

use crate::support::storage::Storage;
use crate::support::{accepted, count};

const ELSEWHERE: QueueName = QueueName::from_static("orders-elsewhere");

/// The kind of the storage's error.
fn kind(problem: &SubmitErrorKind) -> ErrorKind {
    match problem {
        SubmitErrorKind::Storage(error) => error.kind(),
        other => panic!("not of the storage: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_second_of_a_key_returns_the_receipt_of_the_first() {
    let service = testing::service().await;
    let submit = |number| service.submit(order(number)).unique_for(HOUR);
    let first = submit(1)
        .delay(HOUR / 4)
        .request_id("first")
        .await
        .expect("submitted");
    assert!(!first.duplicate);
    assert_eq!(first.request_id.as_str(), "first");

    let other_text = Order {
        number: 1,
        note: "other".into(),
    };
    let second = service
        .submit(other_text)
        .unique_for(2 * HOUR)
        .id("given")
        .await;
    let mut second = second.expect("answered");
    assert!(second.duplicate);
    second.duplicate = false;
    assert_eq!(second, first);

    assert!(!submit(2).await.expect("another key").duplicate);
    assert!(
        !submit(1)
            .to(ELSEWHERE)
            .expect("a name")
            .await
            .expect("another queue")
            .duplicate
    );
    assert!(
        submit(1)
            .to(ELSEWHERE)
            .expect("a name")
            .await
            .expect("answered")
            .duplicate
    );
    service.submit(order(1)).await.expect("unconditional");
    assert_eq!(
        (
            count(&service, "orders").await,
            count(&service, ELSEWHERE.as_str()).await
        ),
        (3, 1)
    );

    advance(HOUR - Duration::from_secs(1)).await;
    assert!(
        submit(1).await.expect("answered").duplicate,
        "also after its delay is over"
    );
    advance(Duration::from_secs(2)).await;
    let next = submit(1).await.expect("submitted");
    assert!(!next.duplicate && next.id != first.id);
    assert!(
        submit(1).await.expect("answered").duplicate,
        "the duration begins anew"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_completed_or_expired_still_counts() {
    let service = testing::service().await;
    let submit = |number| service.submit(order(number)).unique_for(HOUR);
    submit(1).await.expect("submitted");
    accepted::<Order>(&service)
        .await
        .complete()
        .await
        .expect("completed");
    submit(2).time_to_live(HOUR / 4).await.expect("submitted");
    advance(HOUR / 2).await;
    for number in [1, 2] {
        assert!(submit(number).await.expect("answered").duplicate);
    }
    assert!(service.accept::<Order>().await.expect("no error").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_puts_nothing_twice() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(9)).await.expect("the queue exists");
    faults.fail_next(2, Operation::Put, Fault::AnswerLost);
    let first = service
        .submit(order(1))
        .unique_for(HOUR)
        .await
        .expect("tried again");
    assert!(!first.duplicate, "the first try was its own");
    assert_eq!(faults.injected(Operation::Put), 2);

    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    let once = || {
        service
            .submit(order(2))
            .unique_for(HOUR)
            .storage_retry(StorageRetry::never())
    };
    let failed = once().await.expect_err("the answer was lost");
    assert_eq!(failed.outcome(), Outcome::Unknown);
    let repeated = once().await.expect("answered");
    assert!(repeated.duplicate);
    assert_eq!(Some(repeated.id), failed.id);
    assert_eq!(service.submitted::<Order>().len(), 3);
}

#[tokio::test]
#[cfg(feature = "sqlite")]
async fn of_many_submissions_of_two_services_on_a_file_one_puts() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let mut services = Vec::new();
    for _ in 0..2 {
        services.push(QueueService::connect(&url).await.expect("connects"));
    }
    let mut submissions = JoinSet::new();
    for (index, number) in (0..100).zip((1..=5).cycle()) {
        let submit = services[index % 2].submit(order(number)).unique_for(HOUR);
        submissions.spawn(async move { (number, submit.await.expect("answered")) });
    }
    let answers = submissions.join_all().await;
    for number in 1..=5 {
        let of_key = || answers.iter().filter(|(of, _)| *of == number);
        assert_eq!(of_key().count(), 20);
        assert_eq!(
            of_key()
                .filter(|(_, submitted)| !submitted.duplicate)
                .count(),
            1
        );
        let ids: HashSet<_> = of_key().map(|(_, submitted)| &submitted.id).collect();
        assert_eq!(ids.len(), 1, "key {number}");
    }
    assert_eq!(count(&services[0], "orders").await, 5);

    // What is recorded survives, and belongs to the queue's file.
    drop(services);
    let service = QueueService::connect(&url).await.expect("connects");
    let submitted = service
        .submit(order(3))
        .unique_for(HOUR)
        .await
        .expect("answered");
    assert!(submitted.duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_follow_up_that_a_handler_submits_is_unique_too() {
    async fn handle(received: Received<Order>) {
        let next = Order {
            number: 7,
            note: String::new(),
        };
        let submitted = received
            .submit(next)
            .to(ELSEWHERE)
            .expect("a name")
            .unique_for(HOUR)
            .await;
        submitted.expect("submitted");
    }
    let service = testing::service().await;
    service
        .submit_all([order(1), order(2)])
        .await
        .expect("submitted");
    let listener = service
        .listener(handle)
        .until_empty()
        .start()
        .expect("starts");
    assert_eq!(listener.drained().await.info.completed, 2);
    assert_eq!(count(&service, ELSEWHERE.as_str()).await, 1);
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
enum Event {
    Paid {
        #[message(key)]
        order: u32,
    },
    Tick,
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_unique_is_refused() {
    let service = testing::service().await;
    let refused = service.submit(Event::Tick).unique_for(HOUR).await;
    let refused = refused.expect_err("it has no key");
    assert_eq!((&refused.message, &refused.id), (&Event::Tick, &None));
    assert!(
        matches!(refused.kind, SubmitErrorKind::NoKey { kind: "event" }),
        "{refused}"
    );
    let paid = service
        .submit(Event::Paid { order: 1 })
        .unique_for(HOUR)
        .await;
    assert!(!paid.expect("submitted").duplicate);

    let zero = service.submit(order(1)).unique_for(Duration::ZERO).await;
    assert_eq!(
        kind(&zero.expect_err("refused").kind),
        ErrorKind::InvalidInput
    );
    let encoded = service
        .submit(order(1))
        .unique_for(HOUR)
        .encode_for_outbox();
    let encoded = encoded.expect_err("refused").kind;
    assert_eq!(kind(&encoded), ErrorKind::InvalidInput, "{encoded}");

    let (service, _) = Storage::new().connect().await;
    let unsupported = service.submit(order(1)).unique_for(HOUR).await;
    let unsupported = unsupported.expect_err("refused").kind;
    assert_eq!(kind(&unsupported), ErrorKind::Unsupported);
    assert!(
        unsupported.to_string().contains("unique_in"),
        "{unsupported}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_records_submissions_where_the_storage_cannot() {
    let (service, faults) = Storage::new().connect().await;
    let store = MemoryResults::new(Arc::new(TokioClock::new()));
    let submit = |number| service.submit(order(number)).unique_in(&store, HOUR);
    let first = submit(1).delay(HOUR / 4).await.expect("submitted");
    let second = submit(1).await.expect("answered");
    assert_eq!((first.duplicate, second.duplicate), (false, true));
    assert_eq!((second.id, second.visible_at), (first.id, first.visible_at));
    assert_eq!(count(&service, "orders").await, 1);

    // A put that failed leaves no record.
    faults.fail_every(Operation::Put, Fault::Refused(ErrorKind::Storage));
    let failed = submit(2).storage_retry(StorageRetry::never()).await;
    assert_eq!(
        kind(&failed.expect_err("the storage fails").kind),
        ErrorKind::Storage
    );
    faults.heal();
    assert!(!submit(2).await.expect("submitted").duplicate);

    let mut submissions = JoinSet::new();
    for _ in 0..20 {
        let submit = submit(3);
        submissions.spawn(async move { submit.await.expect("answered").duplicate });
    }
    let answers = submissions.join_all().await;
    assert_eq!(answers.iter().filter(|duplicate| !**duplicate).count(), 1);
    assert_eq!(count(&service, "orders").await, 3);

    advance(HOUR + Duration::from_secs(1)).await;
    assert!(!submit(1).await.expect("submitted").duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_released_key_is_submitted_again() {
    let (service, faults) = testing::service_with_faults().await;
    let submit = || service.submit(order(1)).unique_for(HOUR);
    let release = || service.submit(order(1)).release_unique();
    assert!(!release().await.expect("answered"), "nothing is held");
    let first = submit().await.expect("submitted");
    faults.fail_next(2, Operation::Put, Fault::AnswerLost);
    assert!(release().await.expect("tried again"));
    assert_eq!(faults.injected(Operation::Put), 2);
    assert!(!release().await.expect("answered"));
    let second = submit().await.expect("submitted");
    assert!(!second.duplicate && second.id != first.id);
    assert_eq!(count(&service, "orders").await, 2, "the first stays");

    let elsewhere = service
        .submit(order(1))
        .to(ELSEWHERE)
        .expect("a name")
        .release_unique();
    assert!(!elsewhere.await.expect("answered"), "another queue");
    let scope = service.submit(order(1)).unique_scope("orders");
    assert!(
        !scope.release_unique().await.expect("answered"),
        "another scope"
    );
    assert!(submit().await.expect("answered").duplicate);

    let store = service.results().expect("memory has one");
    let stored = service.submit(order(1)).unique_in(&store, HOUR);
    let stored = stored.release_unique().await.expect_err("refused");
    assert_eq!(kind(&stored.kind), ErrorKind::Unsupported);
    let tick = service.submit(Event::Tick).release_unique().await;
    let tick = tick.expect_err("it has no key").kind;
    assert!(matches!(tick, SubmitErrorKind::NoKey { .. }), "{tick}");
    let (service, _) = Storage::new().connect().await;
    let unsupported = service.submit(order(1)).release_unique().await;
    let unsupported = unsupported.expect_err("refused").kind;
    assert_eq!(kind(&unsupported), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_taken_after_a_release_began_is_kept() {
    let (service, faults) = testing::service_with_faults().await;
    let submit = || service.submit(order(1)).unique_for(HOUR);
    let release = || service.submit(order(1)).release_unique();
    submit().await.expect("submitted");
    // It has seen the key, which is released and taken by another message before it goes on.
    faults.fail_next(1, Operation::Put, Fault::AnswerStalled);
    let stalled = tokio::spawn(release());
    while faults.injected(Operation::Put) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(release().await.expect("answered"));
    assert!(!submit().await.expect("submitted").duplicate);
    faults.release();
    let stalled = stalled.await.expect("no panic");
    assert!(stalled.expect("answered"), "it was held when this began");
    assert!(submit().await.expect("answered").duplicate);
}

#[tokio::test(start_paused = true)]
async fn a_scope_spans_queues_and_is_independent_of_them() {
    let service = testing::service().await;
    let store = service.results().expect("memory has one");
    let exact = || service.submit(order(1)).unique_for(HOUR);
    let recorded = || service.submit(order(2)).unique_in(&store, HOUR);
    for submit in [&exact as &dyn Fn() -> _, &recorded] {
        let first = submit().unique_scope("orders").await.expect("submitted");
        let second = submit()
            .unique_scope("orders")
            .to(ELSEWHERE)
            .expect("a name")
            .await;
        let second = second.expect("answered");
        assert!(second.duplicate);
        assert_eq!((second.id, second.queue), (first.id, first.queue));
        for other in [
            submit(),
            submit().to(ELSEWHERE).expect("a name"),
            submit().unique_scope("others"),
        ] {
            assert!(!other.await.expect("submitted").duplicate);
        }
    }
    let released = exact().unique_scope("orders").release_unique();
    assert!(released.await.expect("answered"));
    let submitted = exact()
        .unique_scope("orders")
        .to(ELSEWHERE)
        .expect("a name")
        .await;
    assert!(!submitted.expect("submitted").duplicate);

    let aimless = service.submit(order(3)).unique_scope("orders");
    let aimless = aimless.await.expect_err("refused").kind;
    assert_eq!(kind(&aimless), ErrorKind::InvalidInput);
    assert!(
        aimless
            .to_string()
            .contains("needs `unique_for` or `unique_until_settled`")
    );
    for (scope, length) in [("", 0), (&*"x".repeat(257), 257)] {
        let refused = exact().unique_scope(scope).await.expect_err("refused");
        let refused = refused.to_string();
        let expected = format!("has {length} bytes; allowed are 1 to 256");
        assert!(refused.contains(&expected), "{refused}");
    }
}
