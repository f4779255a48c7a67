//! Groups in a file: what is wrong with them is told, and mended by a salvage.

use std::path::PathBuf;

use queue_core::QueueName;
use queue_core::backend::{Backend, BackendExt as _, GROUP_LIMIT, Metadata, NewMessage};
use queue_runtime::sqlite::{self, FileCheck};
use rusqlite::Connection;

use crate::sqlite::place::{LEASE, Place};
use crate::threads;

/// The messages of the group in each queue: the first queue keeps their order, the second allows two at once.
const MESSAGES: usize = 5;

/// Fills a file with messages of groups, of which some are received.
async fn fill(place: &Place) -> PathBuf {
    let path = place.file();
    let backend = place.open_unsynced(&path).await;
    for (queue, limit) in place.queues.iter().zip(["order", "2"]) {
        let mut metadata = Metadata::new();
        metadata.insert(GROUP_LIMIT, limit).expect("valid");
        backend
            .create_queue(queue, &metadata)
            .await
            .expect("created");
        for number in 0..MESSAGES {
            let message = NewMessage::new(format!("{number}")).with_group(Some("large"));
            backend.put(queue, message).await.expect("put");
        }
        let alone = NewMessage::new("alone").with_group(Some("small"));
        backend.put(queue, alone).await.expect("put");
        let received = backend.receive(queue, 1, LEASE).await;
        assert_eq!(received.expect("received").len(), 1);
    }
    backend.close().await;
    path
}

fn problems(path: &PathBuf) -> usize {
    let report = FileCheck::new(path).run().expect("checked");
    report.problems.iter().map(|problem| problem.count).sum()
}

/// Receives and deletes all messages of a queue, in rounds, and returns the bodies of each round.
async fn rounds(backend: &dyn Backend, queue: &QueueName) -> Vec<Vec<String>> {
    let mut rounds = Vec::new();
    loop {
        let received = backend.receive(queue, 32, LEASE).await.expect("received");
        if received.is_empty() {
            return rounds;
        }
        let body = |body: &[u8]| String::from_utf8(body.to_vec()).expect("text");
        rounds.push(received.iter().map(|one| body(&one.body)).collect());
        for one in received {
            let deleted = backend.delete(queue, &one.id, &one.receipt).await;
            deleted.expect("deleted");
        }
    }
}

#[test]
fn a_check_tells_which_message_of_a_group_is_not_in_its_place() {
    threads::block_on(async {
        let place = Place::new();
        let path = fill(&place).await;
        assert_eq!(problems(&path), 0);
        // The first of "large" is held in each queue; the numbers of its messages are 1 to 5, and 7 to 11.
        for (sql, wrong) in [
            ("UPDATE queue_schedule SET visible_at = 1 WHERE seq = 3", 1),
            ("UPDATE queue_schedule SET visible_at = 1 WHERE seq = 10", 1),
            // All messages of the group are stuck.
            (
                "UPDATE queue_schedule SET visible_at = 253402207200000000 WHERE queue = 1",
                6,
            ),
            (
                "UPDATE queue_schedule SET visible_at = 253402207200000000 WHERE queue = 2",
                6,
            ),
            (
                "DELETE FROM queue_messages WHERE seq = 4; INSERT INTO queue_grouped VALUES (4, 1, 'large', 1, NULL)",
                2,
            ),
        ] {
            let copy = place.path("copy.db");
            std::fs::copy(&path, &copy).expect("copied");
            let connection = Connection::open(&copy).expect("opened");
            connection.execute_batch(sql).expect(sql);
            drop(connection);
            assert!(problems(&copy) >= wrong, "{sql}");
            std::fs::remove_file(copy).expect("removed");
        }
    });
}

#[test]
fn a_salvage_gives_groups_their_order_and_turns_again() {
    threads::block_on(async {
        let place = Place::new();
        let path = fill(&place).await;
        let connection = Connection::open(&path).expect("opened");
        // The received messages are lost, and nothing makes the next ones visible.
        let lost = "DROP TRIGGER queue_grouped_next; DROP TRIGGER queue_turns_next; \
            DELETE FROM queue_schedule WHERE seq IN (1, 7); DELETE FROM queue_messages WHERE seq IN (1, 7)";
        connection.execute_batch(lost).expect("lost");
        drop(connection);
        let new = place.path("new.db");
        let salvaged = sqlite::salvage(&path, &new).expect("salvaged");
        assert_eq!(salvaged.messages, 2 * MESSAGES);
        assert_eq!(problems(&new), 0);

        place.clock.advance(2 * LEASE);
        let backend = place.open_unsynced(&new).await;
        let in_order = rounds(&backend, &place.queues[0]).await;
        let alone = |round: &[String]| round.contains(&"alone".to_owned());
        assert!(alone(&in_order[0]), "{in_order:?}");
        let of_group: Vec<_> = in_order
            .iter()
            .flatten()
            .filter(|body| *body != "alone")
            .collect();
        assert_eq!(of_group, ["1", "2", "3", "4"]);
        let in_turns = rounds(&backend, &place.queues[1]).await;
        assert!(alone(&in_turns[0]), "{in_turns:?}");
        assert_eq!(in_turns.iter().flatten().count(), MESSAGES);
        let of_group = |round: &Vec<String>| round.iter().filter(|body| *body != "alone").count();
        assert!(
            in_turns.iter().map(of_group).all(|at_once| at_once <= 2),
            "{in_turns:?}"
        );
        backend.close().await;
    });
}

/// A program that knows no groups receives by changing the schedule alone, and deletes by deleting.
#[test]
fn what_a_program_without_groups_holds_does_not_yield() {
    threads::block_on(async {
        let place = Place::new();
        let path = place.file();
        let queue = &place.queue;
        let backend = place.open_unsynced(&path).await;
        let mut metadata = Metadata::new();
        metadata.insert(GROUP_LIMIT, "3").expect("valid");
        let created = backend.create_queue(queue, &metadata).await;
        created.expect("created");
        for number in 1..=6 {
            let message = NewMessage::new(format!("{number}")).with_group(Some("a"));
            backend.put(queue, message).await.expect("put");
            place.clock.advance(LEASE / 100);
        }
        let mut held = Vec::new();
        for _ in 0..2 {
            held.extend(
                backend
                    .receive(queue, 1, 10 * LEASE)
                    .await
                    .expect("received"),
            );
            place.clock.advance(LEASE / 100);
        }
        assert_eq!(held.len(), 2);
        let connection = place.connection();
        let lease = "UPDATE queue_schedule SET visible_at = visible_at + 600000000, nonce = 1, dequeue_count = 1 WHERE seq = 3";
        assert_eq!(connection.execute(lease, []).expect("leased"), 1);
        let deleted = backend.delete(queue, &held[0].id, &held[0].receipt).await;
        deleted.expect("deleted");
        assert_eq!(problems(&path), 0);
        let received = backend.receive(queue, 8, LEASE).await.expect("received");
        // Two are leased: the second by this program, the third by the other.
        assert!(received.len() <= 1, "{received:?}");
        let delete =
            "DELETE FROM queue_schedule WHERE seq = 3; DELETE FROM queue_messages WHERE seq = 3";
        connection.execute_batch(delete).expect("deleted");
        drop(connection);
        assert_eq!(problems(&path), 1, "the count, which is changed by hand");
        let rest = backend.receive(queue, 8, LEASE).await.expect("received");
        assert_eq!(received.len() + rest.len(), 2, "{received:?}, {rest:?}");
        backend.close().await;
    });
}
