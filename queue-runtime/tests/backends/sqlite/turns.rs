//! The order in which several processes write to one SQLite file.

use std::fs::{File, TryLockError};
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
use rusqlite::Connection;

use crate::sqlite::place::{LEASE, PATIENCE, Place, put_op};
use crate::threads;

/// Of which a process waits a twentieth for its turn.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20 * 60);

const ROUNDS: usize = 10;

/// The puts of a round, each a transaction of its own.
const PUTS: usize = 4;

/// Records which changes are committed, in their order.
const HISTORY: &str = "
    CREATE TABLE history (id INTEGER PRIMARY KEY, what TEXT);
    CREATE TRIGGER of_renewals AFTER UPDATE ON queue_schedule BEGIN INSERT INTO history (what) VALUES ('renewal'); END;
    CREATE TRIGGER of_puts AFTER INSERT ON queue_messages WHEN NEW.seq % 100 = 0 BEGIN
        INSERT INTO history (what) VALUES ('put');
    END;
";

/// Some work within a transaction, so that others wait for its end.
const WORK: &str = "WITH RECURSIVE row (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM row LIMIT 100000) \
    SELECT sum(id) FROM row";

fn history(connection: &Connection) -> Vec<String> {
    let mut statement = connection
        .prepare("SELECT what FROM history ORDER BY id")
        .expect("a table");
    let rows = statement.query_map([], |row| row.get(0)).expect("rows");
    rows.collect::<Result<_, _>>().expect("text")
}

/// Whether a process waits for its turn to write.
fn is_waited_for(log: &File) -> bool {
    match log.try_lock() {
        Ok(()) => {
            log.unlock().expect("it is locked");
            false
        }
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(error)) => panic!("failed to lock the log: {error}"),
    }
}

#[test]
fn a_renewal_goes_before_the_puts_that_another_process_asks_for_later() {
    threads::block_on(async {
        let place = Place::new();
        let open = || {
            place
                .builder(&place.file())
                .busy_timeout(BUSY_TIMEOUT)
                .open()
        };
        let consumer = open().await.expect("opened");
        let producer = Arc::new(open().await.expect("opened"));
        let created = consumer
            .create_queue(&place.queue, &Metadata::default())
            .await;
        created.expect("created");
        let put = consumer.put(&place.queue, NewMessage::new("order")).await;
        put.expect("put");
        let received = consumer.receive(&place.queue, 1, LEASE).await;
        let received = received.expect("received").remove(0);
        let mut receipt = received.receipt.clone();

        let own = place.connection();
        own.execute_batch(HISTORY).expect("created");
        let log = File::open(place.path("queue.db-wal")).expect("a log");
        for round in 0..ROUNDS {
            own.execute_batch("BEGIN IMMEDIATE; DELETE FROM history")
                .expect("the lock");
            let renewal = consumer.renew(&place.queue, &received.id, &receipt, LEASE, None);
            let mut renewal = Box::pin(renewal);
            let start = Instant::now();
            while !is_waited_for(&log) {
                assert!(start.elapsed() < PATIENCE, "nobody waits for the turn");
                tokio::select! {
                    biased;
                    done = &mut renewal => panic!("nobody else can write: {done:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
            let puts = tokio::spawn({
                let (producer, queue) = (Arc::clone(&producer), place.queue.clone());
                async move {
                    for _ in 0..PUTS {
                        let ops = (0..100).map(|_| put_op(&queue, "bulk")).collect();
                        producer.apply(ops).await.expect("put");
                    }
                }
            });
            tokio::task::yield_now().await;
            own.query_row(WORK, [], |row| row.get::<_, i64>(0))
                .expect("a sum");
            own.execute_batch("COMMIT").expect("committed");
            receipt = renewal.await.expect("renewed").receipt;
            puts.await.expect("put");
            let history = history(&own);
            assert_eq!(history.len(), 1 + PUTS, "round {round}: {history:?}");
            assert_eq!(history[0], "renewal", "round {round}: {history:?}");
        }
    });
}
