//! Operations on a SQLite file: several backends on one file, operations that share a commit, and what they cost.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use queue_core::backend::{Backend, BackendExt as _, NewMessage, Op, PopReceipt, TimeToLive};
use queue_core::{ErrorKind, Outcome, QueueName, RetryAdvice};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::{Message, QueueService};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::sqlite::place::{LEASE, Place, put_op};
use crate::threads;

#[test]
fn two_backends_on_one_file_receive_different_messages() {
    threads::block_on(async {
        let place = Place::new();
        let (one, other) = (place.orders().await, place.orders().await);
        let puts = (0..100).map(|n: i32| one.put(&place.queue, NewMessage::new(n.to_string())));
        for put in join_all(puts).await {
            put.expect("put");
        }
        let mut ids = HashSet::new();
        for backend in [&one, &other, &one, &other] {
            let received = backend.receive(&place.queue, 25, LEASE).await;
            ids.extend(received.expect("receive").into_iter().map(|m| m.id));
        }
        assert_eq!(ids.len(), 100);
    });
}

#[test]
fn a_refused_operation_does_not_fail_others_of_its_commit() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        let put = put.expect("put");
        let stale = PopReceipt::new("0".repeat(32));
        let lock = place.connection();
        lock.execute_batch("BEGIN IMMEDIATE").expect("lock");
        let patient = SqliteBackend::open(place.file(), Arc::new(place.clock.clone())).await;
        let patient = patient.expect("open");
        let missing: QueueName = "missing".parse().expect("a name");
        let (a, b, c, d, ()) = tokio::join!(
            patient.put(&place.queue, NewMessage::new("two")),
            patient.delete(&place.queue, &put.id, &stale),
            patient.put(&missing, NewMessage::new("three")),
            patient.apply(
                vec![
                    put_op(&place.queue, "four"),
                    Op::Delete {
                        queue: place.queue.clone(),
                        id: put.id.clone(),
                        receipt: stale.clone(),
                        moved: false,
                    },
                ]
                .into()
            ),
            async { lock.execute_batch("ROLLBACK").expect("unlock") },
        );
        a.expect("the put succeeds");
        assert_eq!(b.expect_err("stale").kind(), ErrorKind::ReceiptMismatch);
        assert_eq!(c.expect_err("missing").kind(), ErrorKind::QueueNotFound);
        let failure = d.expect_err("stale");
        assert_eq!(
            (failure.index, failure.error.kind()),
            (1, ErrorKind::ReceiptMismatch)
        );
        let properties = backend.properties(&place.queue).await.expect("properties");
        assert_eq!(properties.approximate_count, 2);
    });
}

#[test]
fn an_operation_on_a_locked_file_times_out_without_effect() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let held = backend.put(&place.queue, NewMessage::new("held")).await;
        let held = held.expect("put");
        backend.receive(&place.queue, 1, LEASE).await.expect("held");
        let lock = place.connection();
        lock.execute_batch("BEGIN IMMEDIATE").expect("lock");
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        let delete = backend.delete(&place.queue, &held.id, &held.receipt).await;
        // A put may wait for the transaction that waits for it. Other systems do not tell whose that is.
        let is_known = cfg!(any(target_os = "linux", target_os = "android"));
        let put_again = if is_known {
            RetryAdvice::Permanent
        } else {
            RetryAdvice::Temporary
        };
        for (refused, retry) in [
            (put.expect_err("locked"), put_again),
            (delete.expect_err("locked"), RetryAdvice::Temporary),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Timeout);
            assert_eq!(refused.retry(), retry);
            assert_eq!(refused.outcome(), Outcome::NotDone);
            let whose = if is_known {
                "another connection in this process"
            } else {
                "another process, or"
            };
            assert!(refused.to_string().contains(whose), "{refused}");
        }
        let received = backend.receive(&place.queue, 1, LEASE).await;
        assert_eq!(
            received.expect("a receive from an empty queue needs no lock"),
            []
        );
        lock.execute_batch("ROLLBACK").expect("unlock");
        let put = backend.put(&place.queue, NewMessage::new("two")).await;
        put.expect("the lock is free");
        let peeked = backend.peek(&place.queue, 10).await.expect("peek");
        assert_eq!(peeked.len(), 1, "and one is held");
    });
}

#[test]
fn idle_polling_writes_nothing() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let delayed = NewMessage::new("later").with_delay(LEASE);
        backend.put(&place.queue, delayed).await.expect("put");
        let idle = place.orders().await;
        let watcher = place.connection();
        let version = |watcher: &Connection| -> i64 {
            let pragma = "PRAGMA data_version";
            watcher
                .query_row(pragma, [], |row| row.get(0))
                .expect("version")
        };
        let poll = async || {
            for _ in 0..50 {
                for poller in [&backend, &idle] {
                    let received = poller.receive(&place.queue, 10, LEASE).await;
                    assert_eq!(received.expect("receive"), []);
                }
                place.clock.advance(Duration::from_millis(100));
            }
        };
        // Each of the two empties its log once, a second after its last commit: one of three rounds is without that.
        let mut rounds = Vec::new();
        for _ in 0..3 {
            let before = version(&watcher);
            poll().await;
            rounds.push(version(&watcher) == before);
        }
        assert!(rounds.contains(&true), "{rounds:?}");
        let before = version(&watcher);
        place.clock.advance(LEASE);
        let received = backend.receive(&place.queue, 10, LEASE).await;
        assert_eq!(received.expect("receive").len(), 1);
        assert_ne!(version(&watcher), before, "the watcher detects changes");
    });
}

#[test]
fn counts_are_those_of_the_schedule() {
    threads::block_on(async {
        let place = Place::new();
        let (one, other) = (place.orders().await, place.orders().await);
        for backend in [&one, &other] {
            let ops = (0..7).map(|_| put_op(&place.queue, "one")).collect();
            backend.apply(ops).await.expect("apply");
            let received = backend.receive(&place.queue, 3, LEASE).await;
            let received = received.expect("receive");
            let (id, receipt) = (&received[0].id, &received[0].receipt);
            backend
                .delete(&place.queue, id, receipt)
                .await
                .expect("delete");
            let twice = vec![
                put_op(&place.queue, "two"),
                Op::Delete {
                    queue: place.queue.clone(),
                    id: id.clone(),
                    receipt: receipt.clone(),
                    moved: false,
                },
            ];
            backend
                .apply(twice.into())
                .await
                .expect_err("deleted before");
        }
        for backend in [&one, &other] {
            let properties = backend.properties(&place.queue).await.expect("properties");
            assert_eq!(properties.approximate_count, 12);
        }
        one.clear(&place.queue).await.expect("clear");
        let properties = other.properties(&place.queue).await.expect("properties");
        assert_eq!(properties.approximate_count, 0);
    });
}

#[test]
fn a_receive_skips_any_number_of_expired_messages() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let brief = || Op::Put {
            queue: place.queue.clone(),
            message: NewMessage::new("brief").with_time_to_live(TimeToLive::After(LEASE)),
        };
        for _ in 0..9 {
            let ops = (0..1000).map(|_| brief()).collect();
            backend.apply(ops).await.expect("apply");
        }
        let lasting = vec![put_op(&place.queue, "lasting")];
        backend.apply(lasting.into()).await.expect("apply");
        place.clock.advance(LEASE * 2);
        let received = backend.receive(&place.queue, 10, LEASE).await;
        let received = received.expect("receive");
        assert_eq!(received.len(), 1);
        assert_eq!(received[0].body, "lasting");
    });
}

#[derive(Debug, Serialize, Deserialize, Message)]
struct Transfer {
    amount: u32,
}

#[tokio::test]
async fn more_messages_than_one_operation_takes_are_submitted_in_several() {
    let place = Place::new();
    let url = format!("sqlite:{}", place.path("queue.db").display());
    let service = QueueService::connect(&url).await.expect("connect");
    let transfers = (0..2500).map(|amount| Transfer { amount });
    let progress = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&progress);
    let report = move |stored| reported.lock().expect("no panic").push(stored);
    let submission = service.submit_all(transfers).on_progress(report);
    let submitted = submission.await.expect("submit");
    assert_eq!(*progress.lock().expect("no panic"), [1024, 2048, 2500]);
    let ids: HashSet<_> = submitted.iter().map(|submitted| &submitted.id).collect();
    assert_eq!((submitted.len(), ids.len()), (2500, 2500));
    let queue = service.queue::<Transfer>().any();
    let properties = queue.properties().await.expect("properties");
    assert_eq!(properties.approximate_count, 2500);
}
