//! What an application has travel with each settlement.

use std::time::Duration;

use queue_runtime::envelope::{Envelope, PoisonReason};
use queue_runtime::error::Operation;
use queue_runtime::receive::{Ended, Rider};
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    Delivery, Disposition, FollowUp, Message, QueueService, Received, RetryPolicy,
};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};

use crate::support::{accepted, count, poison, stop, with_orders};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "audit", time_to_live = "1m")]
struct Entry {
    rider: String,
    message: String,
    ended: String,
}

/// Has an entry travel along.
#[derive(Clone, Copy)]
struct Audit {
    name: &'static str,
    is_required: bool,
    fails: Fails,
}

#[derive(Clone, Copy, PartialEq)]
enum Fails {
    Never,
    /// Its entry can never be stored: it is delayed for longer than it lives.
    ByItsEntry,
    ByPanicking,
}

const AUDIT: Audit = Audit {
    name: "audit",
    is_required: false,
    fails: Fails::Never,
};

impl Rider for Audit {
    fn ride(&self, message: &Envelope, ended: Ended<'_>) -> Option<FollowUp> {
        assert!(self.fails != Fails::ByPanicking, "no ink");
        let entry = FollowUp::new(&Entry {
            rider: self.name.to_owned(),
            message: message.id.to_string(),
            ended: match ended {
                Ended::Poisoned {
                    reason,
                    attempts,
                    error,
                    ..
                } => format!("{reason} after {attempts}: {}", error.unwrap_or("no error")),
                Ended::Completed { .. } => "Completed".to_owned(),
                ended => format!("{ended:?}"),
            },
        });
        Some(match self.fails {
            Fails::ByItsEntry => entry.with_delay(Duration::from_secs(600)),
            _ => entry,
        })
    }

    fn is_required(&self) -> bool {
        self.is_required
    }
}

async fn entries(service: &QueueService) -> Vec<Delivery<Entry>> {
    service.accept_many(32).await.expect("no error")
}

fn ended(entries: &[Delivery<Entry>]) -> Vec<(&str, &str)> {
    entries
        .iter()
        .map(|entry| (&*entry.rider, &*entry.ended))
        .collect()
}

/// Failed attempts and postponements are no ends.
#[tokio::test(start_paused = true)]
async fn an_entry_is_there_for_each_message_that_ended_and_for_no_other() {
    let service = with_orders(0..3).await;
    let handler = async |order: Received<Order>| match (order.number, order.attempt()) {
        (0, _) => Disposition::complete(),
        (1, 1) => Disposition::retry("not yet"),
        (1, _) => Disposition::complete(),
        _ => Disposition::reject("never"),
    };
    let second = Audit {
        name: "second",
        ..AUDIT
    };
    let listener = service.listener(handler).rider(AUDIT).rider(second);
    let listener = listener.retry(RetryPolicy::fixed(SECOND));
    let listener = listener.start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    stop(listener).await;
    let entries = entries(&service).await;
    let mut all = ended(&entries);
    all.sort_unstable();
    let rejected = "rejected after 1: never";
    let of = |name| [(name, "Completed"), (name, "Completed"), (name, rejected)];
    assert_eq!(all, [of("audit"), of("second")].concat());
}

/// An answer that is lost is asked for again, and the entry is in the same step: there is one of each settlement.
#[tokio::test(start_paused = true)]
async fn an_entry_travels_with_what_accept_settles() {
    let (service, faults) = testing::service_with_faults().await;
    service.submit(order(7)).await.expect("stored");
    let order = service.accept::<Order>().rider(AUDIT).await;
    let order = order.expect("no error").expect("a message");
    faults.fail_next(1, Operation::Apply, Fault::AnswerLost);
    order.complete().await.expect("settled");
    assert_eq!(faults.injected(Operation::Apply), 1);
    let entries = entries(&service).await;
    assert_eq!(ended(&entries), [("audit", "Completed")]);
    assert_eq!(count(&service, "orders").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_is_completed_without_an_entry_unless_that_is_required() {
    for fails in [Fails::ByItsEntry, Fails::ByPanicking] {
        for is_required in [false, true] {
            let service = with_orders(0..1).await;
            let audit = Audit {
                is_required,
                fails,
                ..AUDIT
            };
            let listener = service
                .listener(async |_: Received<Order>| {})
                .retry(RetryPolicy::fixed(SECOND))
                .poison_threshold(3)
                .rider(audit)
                .start()
                .expect("starts");
            testing::drain([&listener]).await.expect("drained");
            let info = listener.info();
            stop(listener).await;
            assert_eq!(entries(&service).await.len(), 0);
            if !is_required {
                assert_eq!((info.completed, info.retried, info.poisoned), (1, 0, 0));
                continue;
            }
            // Without an entry of that, because nothing keeps a message from its poison queue.
            assert_eq!((info.completed, info.retried, info.poisoned), (0, 2, 1));
            let poison = poison(&service, "orders-poison").await;
            let record = &poison[0].0;
            assert_eq!(record.reason, PoisonReason::Failed);
            let error = record.error.as_deref().expect("an error");
            let expected = match fails {
                Fails::ByPanicking => "a rider of the settlement failed: it panicked: no ink",
                _ => "a rider of the settlement failed: ",
            };
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn accept_learns_that_a_required_entry_failed_and_has_the_message_still() {
    let service = with_orders(0..1).await;
    let audit = Audit {
        is_required: true,
        fails: Fails::ByPanicking,
        ..AUDIT
    };
    let order = service.accept::<Order>().rider(audit).await;
    let order = order.expect("no error").expect("a message");
    let unsettled = order.complete().await.expect_err("the rider panics");
    let shown = format!("{unsettled:?}");
    assert!(shown.contains("no ink"), "{shown}");
    unsettled.delivery.release().await.expect("it is leased");
    assert_eq!(accepted::<Order>(&service).await.attempt(), 1);
}

/// Its work is not done again, and its entry has the id of the first one.
#[tokio::test(start_paused = true)]
async fn a_duplicate_has_the_same_entry_again() {
    let service = testing::service().await;
    for _ in 0..2 {
        let order = order(7);
        let submit = service.submit(order).id("one");
        submit.request_id("checkout").await.expect("stored");
    }
    let results = service.results().expect("memory has results");
    let listener = service
        .listener(async |_: Received<Order>| {})
        .idempotent(results)
        .rider(AUDIT)
        .start()
        .expect("starts");
    testing::drain([&listener]).await.expect("drained");
    let info = listener.info();
    assert_eq!((info.completed, info.duplicates), (1, 1));
    stop(listener).await;
    let entries = entries(&service).await;
    assert_eq!(ended(&entries), [("audit", "Completed"); 2]);
    let ids = entries.iter().map(|entry| entry.envelope().id.as_str());
    let ids: Vec<_> = ids.collect();
    assert_eq!(ids[0], ids[1]);
}

/// A message that is redriven ends anew, and so is another entry.
#[tokio::test(start_paused = true)]
async fn the_entries_of_two_ends_have_two_ids() {
    let service = with_orders(0..1).await;
    let accept = || service.accept::<Order>().rider(AUDIT);
    let order = accept().await.expect("no error").expect("a message");
    order.reject("sold out").await.expect("settled");
    let redrive = service
        .any_queue("orders-poison")
        .expect("a name")
        .redrive();
    assert_eq!(redrive.run().await.expect("redriven").redriven, 1);
    let order = accept().await.expect("no error").expect("a message");
    order.complete().await.expect("settled");
    let entries = entries(&service).await;
    assert_eq!(entries.len(), 2);
    assert_ne!(entries[0].envelope().id, entries[1].envelope().id);
}
