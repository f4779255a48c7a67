//! What is removed in the background from a damaged file, and when removing fails.

use std::fs;
use std::time::Duration;

use queue_core::ErrorKind;
use queue_core::backend::{Backend, BackendExt as _, NewMessage, TimeToLive};
use queue_runtime::backend::SqliteBackend;
use rusqlite::Connection;

use crate::sqlite::damaged_file::{count, drain, pages};
use crate::sqlite::place::{LEASE, Place};
use crate::threads;

#[test]
fn damage_in_the_way_of_the_sweep_fails_nothing_else() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1000, 1, TimeToLive::After(LEASE)).await;
        let leaves = pages(&whole, "queue_schedule", "leaf");
        let of_each_queue = [leaves[1], leaves[leaves.len() * 3 / 4]];
        for (damaged, page) in place.queues.iter().zip(of_each_queue) {
            let backend = place.open_unsynced(&place.damaged(&whole, page)).await;
            place.clock.advance(LEASE * 2);
            for queue in &place.queues {
                for _ in 0..20 {
                    let put = backend.put(queue, NewMessage::new("new")).await;
                    put.expect("put");
                    place.clock.advance(Duration::from_secs(1));
                }
                if queue == damaged {
                    let received = backend.receive(queue, 100, LEASE).await;
                    let refused = received.expect_err("its schedule is damaged");
                    assert_eq!(refused.kind(), ErrorKind::Corrupt);
                } else {
                    assert_eq!(drain(&backend, queue).await.len(), 20);
                }
            }
            backend.close().await;
        }
    });
}

/// Puts messages one by one, each of which also gives time to a step of the purge.
async fn drive(backend: &SqliteBackend, place: &Place) {
    for _ in 0..30 {
        let put = backend.put(&place.queues[0], NewMessage::new("new"));
        put.await.expect("put");
        place.clock.advance(Duration::from_millis(200));
    }
}

#[test]
fn expired_messages_with_damaged_bodies_are_removed() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1000, 1, TimeToLive::After(LEASE)).await;
        let page = pages(&whole, "queue_messages", "leaf")[1];
        let path = place.damaged(&whole, page);
        let backend = place.open_unsynced(&path).await;
        place.clock.advance(LEASE * 2);
        drive(&backend, &place).await;
        backend.close().await;
        assert_eq!(
            count(&path, "queue_schedule WHERE expires_at IS NOT NULL"),
            0
        );
        // Only the bodies that would be removed together with damaged ones stay behind.
        let discarded = count(&path, "queue_discarded");
        assert!((1..1100).contains(&discarded), "{discarded}");
    });
}

#[test]
fn a_deleted_queue_with_damage_does_not_keep_the_others() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1000, 1, TimeToLive::Never).await;
        let page = pages(&whole, "queue_schedule", "leaf")[1];
        let path = place.damaged(&whole, page);
        let backend = place.open_unsynced(&path).await;
        for queue in &place.queues {
            backend.clear(queue).await.expect("clear");
        }
        drive(&backend, &place).await;
        backend.close().await;
        assert_eq!(count(&path, "queue_schedule WHERE queue = 2"), 0);
        assert_eq!(count(&path, "queue_dropped"), 1);
    });
}

#[test]
fn removal_goes_on_after_a_temporary_failure() {
    threads::block_on(async {
        let place = Place::new();
        for dropped in [false, true] {
            let path = place.fill(1000, 1, TimeToLive::After(LEASE)).await;
            let backend = place.open_unsynced(&path).await;
            let change = |sql: &str| {
                let connection = Connection::open(&path).expect("open");
                connection.execute_batch(sql).expect("change");
            };
            change(
                "CREATE TRIGGER full BEFORE DELETE ON queue_messages \
                 BEGIN SELECT RAISE(ABORT, 'as on a full disk'); END",
            );
            if dropped {
                backend.clear(&place.queues[1]).await.expect("clear");
            } else {
                place.clock.advance(LEASE * 2);
            }
            drive(&backend, &place).await;
            assert_eq!(count(&path, "queue_schedule WHERE queue = 2"), 1000);
            change("DROP TRIGGER full");
            drive(&backend, &place).await;
            assert_eq!(count(&path, "queue_schedule WHERE queue = 2"), 0);
            backend.close().await;
            fs::remove_file(&path).expect("remove");
        }
    });
}
