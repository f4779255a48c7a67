//! What a SQLite backend removes and shortens in the background.

use std::fs;
use std::time::{Duration, Instant};

use queue_core::QueueName;
use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage, Op, Swap, TimeToLive};
use queue_core::idempotency::WorkKey;

use crate::sqlite::place::{LEASE, PATIENCE, Place, put_op};
use crate::threads;

#[test]
fn messages_of_deleted_and_cleared_queues_are_removed() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        for round in 0..2 {
            for _ in 0..2 {
                let ops = (0..750).map(|_| put_op(&place.queue, "one")).collect();
                backend.apply(ops).await.expect("apply");
            }
            if round == 0 {
                backend.clear(&place.queue).await.expect("clear");
            } else {
                backend.delete_queue(&place.queue).await.expect("delete");
            }
        }
        let connection = place.connection();
        let rows = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            connection
                .query_row(&sql, [], |row| row.get(0))
                .expect("count")
        };
        // The backend removes it in the background.
        let start = Instant::now();
        while rows("queue_dropped") > 0 {
            assert!(start.elapsed() < PATIENCE, "it is still there");
            tokio::task::yield_now().await;
        }
        assert_eq!((rows("queue_messages"), rows("queue_schedule")), (0, 0));
    });
}

#[test]
fn expired_messages_are_removed_without_a_receive() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let brief = NewMessage::new("brief").with_time_to_live(TimeToLive::After(LEASE));
        for _ in 0..10 {
            let put = backend.put(&place.queue, brief.clone()).await;
            put.expect("put");
        }
        place.clock.advance(LEASE * 2);
        let put = backend.put(&place.queue, NewMessage::new("lasting")).await;
        put.expect("put");
        // The backend removes them in the background.
        let start = Instant::now();
        let count = async || {
            let properties = backend.properties(&place.queue).await;
            properties.expect("properties").approximate_count
        };
        while count().await > 1 {
            assert!(start.elapsed() < PATIENCE, "they are still there");
        }
        assert_eq!(count().await, 1);
        let bodies = "SELECT count(*) FROM queue_messages";
        let bodies = place.connection().query_row(bodies, [], |row| row.get(0));
        assert_eq!(bodies, Ok(1));
    });
}

#[test]
fn a_sweep_visits_all_queues_whose_messages_expire() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let queues: Vec<QueueName> = (0..100)
            .map(|n| format!("queue-{n}").parse().expect("a name"))
            .collect();
        let lasting = NewMessage::new("lasting");
        let brief = NewMessage::new("brief").with_time_to_live(TimeToLive::After(LEASE));
        for (n, queue) in queues.iter().enumerate() {
            let created = backend.create_queue(queue, &Metadata::new()).await;
            created.expect("create");
            // In every third queue, nothing expires.
            let second = if n % 3 == 0 { &lasting } else { &brief };
            for message in [&lasting, second] {
                backend.put(queue, message.clone()).await.expect("put");
            }
        }
        place.clock.advance(LEASE * 2);
        let brief = queues.iter().enumerate().filter(|(n, _)| n % 3 != 0);
        for (_, queue) in brief {
            let start = Instant::now();
            loop {
                // Any transaction sweeps on.
                place.clock.advance(Duration::from_secs(1));
                backend
                    .put(&place.queue, lasting.clone())
                    .await
                    .expect("put");
                let properties = backend.properties(queue).await.expect("properties");
                match properties.approximate_count {
                    1 => break,
                    other => assert_eq!(other, 2),
                }
                assert!(start.elapsed() < PATIENCE, "it is still there");
            }
        }
    });
}

#[test]
fn keys_and_results_whose_time_is_over_are_removed() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let connection = place.connection();
        let fill =
            "WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row LIMIT 100000)
            INSERT INTO queue_results (scope, key, owner, ends_at, result)
            SELECT 'unique on orders', CAST(id AS BLOB), 0, id, x'00' FROM row";
        connection.execute(fill, []).expect("filled");
        let lasting = Swap::new(WorkKey::new("test", "lasting"), "value", LEASE * 1000);
        let put = backend.put_if(&place.queue, None, &lasting).await;
        put.expect("recorded");
        place.clock.advance(LEASE * 2);
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        put.expect("put");
        // The backend removes them in the background.
        let start = Instant::now();
        let count = || -> i64 {
            let count = "SELECT count(*) FROM queue_results";
            let count = connection.query_row(count, [], |row| row.get(0));
            count.expect("count")
        };
        while count() > 1 {
            assert!(start.elapsed() < PATIENCE, "they are still there");
            tokio::task::yield_now().await;
        }
        assert_eq!(count(), 1);
    });
}

#[test]
fn an_idle_process_leaves_nothing_in_the_log() {
    threads::block_on(async {
        let place = Place::new();
        let (backend, _other) = (place.orders().await, place.orders().await);
        let put = backend.put(&place.queue, NewMessage::new("one")).await;
        put.expect("put");
        let log = place.file().with_extension("db-wal");
        let start = Instant::now();
        while fs::metadata(&log).expect("the log").len() > 0 {
            assert!(start.elapsed() < PATIENCE, "the log is still there");
            tokio::task::yield_now().await;
        }
        let copy = place.directory.path().join("copy.db");
        fs::copy(place.file(), &copy).expect("copy");
        let copied = place.try_open(&copy).await.expect("open");
        let peeked = copied.peek(&place.queue, 10).await.expect("peek");
        assert_eq!(peeked.len(), 1);
    });
}

#[test]
fn a_drained_file_is_shortened_while_idle() {
    threads::block_on(async {
        let place = Place::new();
        let backend = place.orders().await;
        let body = "x".repeat(40_000);
        for _ in 0..5 {
            let ops = (0..150).map(|_| Op::Put {
                queue: place.queue.clone(),
                message: NewMessage::new(body.clone()),
            });
            backend.apply(ops.collect()).await.expect("put");
        }
        backend.clear(&place.queue).await.expect("clear");
        let put = backend.put(&place.queue, NewMessage::new("kept")).await;
        put.expect("put");
        let start = Instant::now();
        while fs::metadata(place.file()).expect("the file").len() > 5 * 1024 * 1024 {
            assert!(start.elapsed() < PATIENCE, "the file is as long as before");
            tokio::task::yield_now().await;
        }
        let received = backend.receive(&place.queue, 10, LEASE).await;
        assert_eq!(received.expect("receive")[0].body, "kept");
        let check = "PRAGMA integrity_check";
        let checked = place.connection().query_row(check, [], |row| row.get(0));
        assert_eq!(checked, Ok("ok".to_owned()));
    });
}
