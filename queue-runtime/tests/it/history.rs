//! What became of messages whose types keep a history.

use std::sync::Arc;

use queue_runtime::error::Operation;
use queue_runtime::internal::error_chain;
use queue_runtime::service::{Cancelled, HistoryEntry, HowEnded, Rescheduled, Status};
use queue_runtime::testing::{self, Fault, TestService};
use queue_runtime::{Failure, Message, MessageId, QueueService, Received, RetryPolicy};
use queue_tests::{HOUR, SECOND};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::support::stop;
use crate::support::storage::Storage;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(
    queue = "orders",
    history = 100_000,
    history_age = "1h",
    poison_threshold = 2,
    tracked
)]
struct Order {
    number: u32,
}

/// A type without a history on the same queue.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "orders")]
struct Note;

/// A type with a short history.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "ticks", history = 100)]
struct Tick {
    number: u32,
}

async fn entries(service: &QueueService, queue: &str) -> Vec<HistoryEntry> {
    let history = service.any_queue(queue).expect("a name").history();
    let history = history.expect("a name");
    let (mut entries, mut from) = (Vec::new(), None);
    loop {
        let page = match history.browse(from.as_ref(), 100).await {
            Ok(page) => page,
            Err(error) if error.is_queue_gone() => return entries,
            Err(error) => panic!("{error}"),
        };
        entries.extend(
            page.messages
                .iter()
                .map(|one| one.history().expect("an entry")),
        );
        from = page.next;
        if from.is_none() {
            return entries;
        }
    }
}

/// Handles orders: the second attempt of an even one succeeds, and that of 99 fails.
async fn handle(order: Received<Order>) -> Result<(), Failure> {
    match order.number {
        99 => Err(Failure::retry("the warehouse is closed")),
        number if number.is_multiple_of(2) && order.attempt() == 1 => {
            Err(Failure::retry("try again"))
        }
        _ => {
            sleep(SECOND).await;
            Ok(())
        }
    }
}

async fn submitted(service: &TestService, number: u32) -> MessageId {
    service
        .submit(Order { number })
        .await
        .expect("submitted")
        .id
}

#[tokio::test(start_paused = true)]
async fn each_end_leaves_an_entry() {
    let service = testing::service().await;
    let mut ids = Vec::new();
    for number in [1, 2, 99] {
        ids.push(submitted(&service, number).await);
    }
    service.submit(Note).await.expect("submitted");
    let router = service.router("orders").expect("a name");
    let router = router.handle(handle).handle(async |_: Received<Note>| ());
    let listener = router.retry(RetryPolicy::fixed(SECOND)).start();
    let listener = listener.expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;

    let mut found = entries(&service, "orders").await;
    found.sort_by_key(|entry| ids.iter().position(|id| *id == entry.id));
    let found = found.iter().map(|entry| {
        assert_eq!(entry.kind, "order");
        let error = entry.error.as_deref();
        (entry.how, entry.attempts, entry.took.as_secs(), error)
    });
    let expected = [
        (HowEnded::Completed, 1, 1, None),
        (HowEnded::Completed, 2, 1, None),
        (HowEnded::Poisoned, 2, 0, Some("the warehouse is closed")),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_status_tells_how_a_tracked_message_ended() {
    let service = testing::service().await;
    let id = submitted(&service, 1).await;
    let order = service.accept::<Order>().await.expect("accepted");
    order.expect("one").complete().await.expect("completed");
    let ended = async || match service.status(&id).await.expect("read") {
        Status::Ended { entry, .. } => (entry.how, entry.attempts),
        other => panic!("{other:?}"),
    };
    assert_eq!(ended().await, (HowEnded::Completed, 1));
    let cancelled = service.cancel(&id).await.expect("cancelled");
    assert_eq!(cancelled, Cancelled::Completed);
    assert_eq!(
        entries(&service, "orders").await.len(),
        1,
        "the entry stays"
    );

    sleep(HOUR).await;
    assert!(entries(&service, "orders").await.is_empty());
    assert!(matches!(
        service.status(&id).await.expect("read"),
        Status::Gone
    ));
}

#[tokio::test(start_paused = true)]
async fn the_last_end_counts_of_a_message_that_was_redriven() {
    let service = testing::service().await;
    let id = submitted(&service, 1).await;
    let accept = async || {
        service
            .accept::<Order>()
            .await
            .expect("accepted")
            .expect("one")
    };
    accept().await.reject("not today").await.expect("rejected");
    let poison = service.queue::<Order>().poison().expect("a name");
    assert!(matches!(
        service.status(&id).await.expect("read"),
        Status::Poison { .. }
    ));
    sleep(SECOND).await;
    poison.redrive().run().await.expect("redriven");
    accept().await.complete().await.expect("completed");
    let status = service.status(&id).await.expect("read");
    assert!(matches!(&status, Status::Ended { entry, .. } if entry.how == HowEnded::Completed));
    let ends: Vec<HowEnded> = entries(&service, "orders")
        .await
        .iter()
        .map(|one| one.how)
        .collect();
    assert_eq!(ends, [HowEnded::Poisoned, HowEnded::Completed]);
}

#[tokio::test(start_paused = true)]
async fn about_as_many_entries_are_kept_as_the_type_says() {
    const TICKS: u32 = 2_000;

    let service = testing::service().await;
    for first in (0..TICKS).step_by(500) {
        let ticks = (first..first + 500).map(|number| Tick { number });
        service.submit_all(ticks).await.expect("submitted");
        let listener = service.listener(async |_: Received<Tick>| ()).start();
        let listener = listener.expect("starts");
        testing::drain([&listener]).await.expect("drained");
        stop(listener).await;
        sleep(SECOND).await;
        let kept = entries(&service, "ticks").await;
        assert!((100..=164).contains(&kept.len()), "{}", kept.len());
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_made_in_the_step_that_ends_its_message() {
    let (service, faults) = testing::service_with_faults().await;
    submitted(&service, 1).await;
    let order = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("one");
    faults.fail_every(Operation::Apply, Fault::RequestLost);
    order.complete().await.expect_err("not carried out");
    faults.heal();
    assert!(entries(&service, "orders").await.is_empty());

    sleep(60 * SECOND).await;
    let order = service
        .accept::<Order>()
        .await
        .expect("accepted")
        .expect("again");
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    order.complete().await.expect("completed");
    let found = entries(&service, "orders").await;
    assert!(
        matches!(&found[..], [one] if one.attempts == 2),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_storage_that_shows_only_visible_messages_has_no_history() {
    let service = QueueService::with_backend(Arc::new(Storage::new())).connect();
    let service = service.await.expect("connects");
    let refused = service.accept::<Tick>().await.expect_err("refused");
    let text = error_chain(&refused);
    assert!(
        text.ends_with("the history is 100 entries; allowed is none on a storage that shows only visible messages, such as Azure"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_name_leaves_no_room_has_no_history() {
    let service = testing::service().await;
    for (length, is_allowed) in [(55, true), (56, false)] {
        let name = "q".repeat(length);
        let queue = service.queue_named::<Tick>(name.as_str()).expect("a name");
        let listener = queue.listener(async |_: Received<Tick>| ()).start();
        match listener {
            Ok(listener) if is_allowed => stop(listener).await,
            Err(error) if !is_allowed => {
                let text = error_chain(&error);
                assert!(
                    text.contains("a name that leaves room for `-history`"),
                    "{text}"
                );
            }
            other => panic!("{length}: {other:?}"),
        }
    }
}

/// A type whose entries are not kept for long.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(
    queue = "ticks",
    kind = "aging-tick",
    history = 100,
    history_age = "1h"
)]
struct AgingTick {
    number: u32,
}

async fn handle_ticks(service: &TestService, ticks: u32) {
    let ticks = (0..ticks).map(|number| AgingTick { number });
    service.submit_all(ticks).await.expect("submitted");
    let listener = service.listener(async |_: Received<AgingTick>| ()).start();
    let listener = listener.expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    sleep(60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn entries_that_have_expired_do_not_count_for_those_that_are_kept() {
    let service = testing::service().await;
    handle_ticks(&service, 100).await;
    sleep(HOUR).await;
    for ticks in 1..=10 {
        handle_ticks(&service, 10).await;
        assert_eq!(entries(&service, "ticks").await.len(), 10 * ticks);
    }
}

#[tokio::test(start_paused = true)]
async fn what_happened_last_counts_of_an_id_that_is_submitted_again() {
    let service = testing::service().await;
    let submit = async || {
        let order = service.submit(Order { number: 1 }).id("nightly");
        order.await.expect("submitted").id
    };
    let complete = async || {
        let order = service.accept::<Order>().await.expect("accepted");
        order.expect("one").complete().await.expect("completed");
        sleep(SECOND).await;
    };
    let id = submit().await;
    complete().await;
    submit().await;
    assert!(matches!(
        service.status(&id).await.expect("read"),
        Status::Waiting { .. }
    ));
    assert_eq!(
        service.cancel(&id).await.expect("cancelled"),
        Cancelled::Removed
    );
    assert_eq!(
        service.cancel(&id).await.expect("cancelled"),
        Cancelled::Before
    );
    assert!(matches!(
        service.status(&id).await.expect("read"),
        Status::Cancelled
    ));

    sleep(SECOND).await;
    submit().await;
    complete().await;
    assert!(matches!(
        service.status(&id).await.expect("read"),
        Status::Ended { .. }
    ));
    assert_eq!(
        service.cancel(&id).await.expect("cancelled"),
        Cancelled::Completed
    );
    let rescheduled = service.reschedule(&id, HOUR).await.expect("read");
    assert_eq!(rescheduled, Rescheduled::Completed);
}
