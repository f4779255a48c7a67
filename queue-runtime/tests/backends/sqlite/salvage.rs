//! Salvage: what is readable of a damaged file is copied to a new one.

use std::fs;

use queue_core::ErrorKind;
use queue_core::backend::{Backend, BackendExt as _, TimeToLive};
use queue_runtime::sqlite;
use rusqlite::Connection;

use crate::sqlite::damaged_file::{
    PAGE, ROWS_OF_A_PAGE, bodies, body_of, drain, neighbours, pages,
};
use crate::sqlite::place::{LEASE, Place};
use crate::threads;

/// [`neighbours`], and pairs with the last leaf.
fn pairs(leaves: usize) -> Vec<[usize; 2]> {
    let with_last = [0, 1, leaves / 2 + 2].map(|leaf| [leaf, leaves - 1]);
    [with_last, neighbours(leaves)].concat()
}

#[test]
fn salvage_copies_what_is_between_and_beside_damaged_pages() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        let leaves = pages(&whole, "queue_messages", "leaf");
        for [one, other] in pairs(leaves.len()) {
            let path = place.damaged_at(&whole, &[leaves[one], leaves[other]]);
            let new = place.path(&format!("new-{one}-{other}.db"));
            let salvaged = sqlite::salvage(path, &new).expect("salvage");
            assert_eq!(salvaged.messages + salvaged.lost, 2 * MESSAGES);
            let lost = salvaged.lost;
            assert!((2..=80).contains(&lost), "leaves {one}, {other}: {lost}");
        }

        let leaves = pages(&whole, "queue_schedule", "leaf");
        assert!(leaves.len() > 4, "{leaves:?}");
        for [one, other] in neighbours(leaves.len()) {
            for other in [one, other] {
                let path = place.damaged_at(&whole, &[leaves[one], leaves[other]]);
                let new = place.path(&format!("new-schedule-{one}-{other}.db"));
                let salvaged = sqlite::salvage(path, &new).expect("salvage");
                assert_eq!((salvaged.messages, salvaged.lost), (2 * MESSAGES, 0));
                // The damaged pages, and those between them.
                let unknown = salvaged.rescheduled as usize;
                let pages = other - one + 1;
                assert!(
                    (pages..=pages * ROWS_OF_A_PAGE).contains(&unknown),
                    "leaves {one}, {other}: {unknown}"
                );
            }
        }
    });
}

#[test]
fn salvage_goes_on_after_an_altered_id() {
    const MESSAGES: usize = 60;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 100, TimeToLive::Never).await;
        let page = pages(&whole, "queue_messages", "leaf")[1];
        let mut bytes = fs::read(&whole).expect("read");
        // The second row of the page becomes the first one once more.
        let rows = (page - 1) * PAGE + 8;
        bytes.copy_within(rows..rows + 2, rows + 2);
        let path = place.path("altered.db");
        fs::write(&path, bytes).expect("write");
        let salvaged = sqlite::salvage(path, place.path("new.db")).expect("salvage");
        assert_eq!(salvaged.messages, 2 * MESSAGES - 1);
        assert_eq!((salvaged.lost, salvaged.rescheduled), (1, 0));
    });
}

#[test]
fn a_failed_salvage_leaves_no_file_and_names_the_damaged_one() {
    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(1, 1, TimeToLive::Never).await;
        let path = place.path("dropped.db");
        fs::copy(&whole, &path).expect("copy");
        let connection = Connection::open(&path).expect("open");
        connection
            .execute_batch("DROP TABLE queue_queues")
            .expect("drop");
        drop(connection);
        let new = place.path("new.db");
        let refused = sqlite::salvage(&path, &new).expect_err("a table is missing");
        assert!(!new.exists());
        assert!(refused.to_string().contains("dropped.db"), "{refused}");
    });
}

#[test]
fn deeper_damage_fails_and_what_is_readable_is_salvaged() {
    const MESSAGES: usize = 1500;

    threads::block_on(async {
        let place = Place::new();
        let whole = place.fill(MESSAGES, 1, TimeToLive::Never).await;
        let root = pages(&whole, "queue_schedule", "internal")[0];
        let path = place.damaged(&whole, root);
        let backend = place.open_unsynced(&path).await;
        let received = backend.receive(&place.queues[0], 1, LEASE).await;
        let refused = received.expect_err("damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert!(refused.to_string().contains("salvage"), "{refused}");
        backend.close().await;

        let before = fs::read(&path).expect("read");
        let salvaged = sqlite::salvage(&path, place.path("new.db")).expect("salvage");
        assert_eq!(fs::read(&path).expect("read"), before);
        assert_eq!(salvaged.messages, 2 * MESSAGES);
        assert_eq!(salvaged.rescheduled, 2 * MESSAGES);
        let backend = place.open_unsynced(&place.path("new.db")).await;
        for queue in &place.queues {
            let all = (0..MESSAGES).map(|n| body_of(queue, n, 1)).collect();
            assert_eq!(bodies(&drain(&backend, queue).await), all);
        }
        sqlite::salvage(&path, place.path("new.db")).expect_err("it exists");
    });
}

#[test]
fn salvage_copies_what_is_readable() {
    const MESSAGES: usize = 300;

    threads::block_on(async {
        let place = Place::new();
        let whole = place
            .fill(MESSAGES, 100, TimeToLive::After(LEASE * 10))
            .await;
        let backend = place.open_unsynced(&whole).await;
        let leased = backend.receive(&place.queues[0], 1, LEASE).await;
        let leased = leased.expect("receive").pop().expect("a message");
        let metadata = backend.metadata(&place.queues[0]).await.expect("metadata");
        backend.clear(&place.queues[1]).await.expect("clear");
        backend.close().await;
        let bodies_of_pages = pages(&whole, "queue_messages", "leaf");
        for page in [bodies_of_pages[1], bodies_of_pages[3]] {
            let new = place.path(&format!("new-{page}.db"));
            let path = place.damaged(&whole, page);
            let salvaged = sqlite::salvage(path, &new).expect("salvage");
            assert_eq!((salvaged.queues, salvaged.rescheduled), (2, 0));
            assert_eq!(salvaged.messages + salvaged.lost, MESSAGES);
            assert!((1..=40).contains(&salvaged.lost), "{salvaged:?}");
            let backend = place.open_unsynced(&new).await;
            let copied = backend.metadata(&place.queues[0]).await.expect("metadata");
            assert_eq!(copied, metadata);
            // Leases are kept, and receipts with them.
            let (id, receipt) = (&leased.id, &leased.receipt);
            if backend.delete(&place.queues[0], id, receipt).await.is_ok() {
                let rest = drain(&backend, &place.queues[0]).await;
                assert_eq!(rest.len(), salvaged.messages - 1);
                assert_eq!(bodies(&rest).len(), rest.len());
            }
            assert!(drain(&backend, &place.queues[1]).await.is_empty());
            backend.close().await;
        }
    });
}
