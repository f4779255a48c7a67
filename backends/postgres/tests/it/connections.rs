//! Connections that the server ends, again and again, under load: nothing that was acknowledged is lost, and nothing that
//! was said not to be done is done.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::backend::{Backend as _, BackendExt as _, NewMessage, StorageId};
use queue_core::{Error, Outcome, QueueName};
use tokio::task::JoinSet;

use crate::server::{Schema, block_on, pooler};

static ORDERS: QueueName = QueueName::from_static("orders");
const TASKS: usize = 8;
/// How many messages each task puts at least.
const EACH: usize = 60;
/// How many connections are ended at least: a connection that has nothing to do is replaced without a word, so the puts go
/// on until one of them was disturbed.
const ENDED: usize = 10;
/// How many connections are ended at most before a put must have been disturbed.
const ENDED_AT_MOST: usize = 2_000;
/// Longer than the test takes: no message is received twice.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// What was answered.
#[derive(Debug, Default)]
struct Answered {
    done: HashSet<StorageId>,
    unknown: usize,
    not_done: usize,
}

impl Answered {
    /// Counts a failure, which must be one of the connection.
    fn fail(&mut self, error: &Error) {
        assert_ne!(
            error.retry(),
            queue_core::RetryAdvice::Permanent,
            "{error:?}"
        );
        match error.outcome() {
            Outcome::Unknown => self.unknown += 1,
            Outcome::NotDone => self.not_done += 1,
        }
    }

    fn add(&mut self, id: StorageId) {
        assert!(self.done.insert(id), "a message was answered twice");
    }
}

/// Runs a phase: its tasks, while the connections of the backend are ended one after the other.
async fn disturbed<F: Future<Output = Answered> + Send + 'static>(
    schema: &Schema,
    ended: &Arc<AtomicUsize>,
    task: impl Fn() -> F,
) -> Answered {
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(task());
    }
    let over = Arc::new(AtomicBool::new(false));
    let disturber = {
        let (client, name) = (schema.connect().await, schema.name().to_owned());
        let (over, ended) = (Arc::clone(&over), Arc::clone(ended));
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM (
                    SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT 1) AS one";
                let row = client.query_one(end, &[&name]).await.expect("ended");
                ended.fetch_add(row.get::<_, i64>(0) as usize, Ordering::Relaxed);
                client
                    .batch_execute("SELECT pg_sleep(0.05)")
                    .await
                    .expect("paused");
            }
        })
    };
    let mut all = Answered::default();
    for one in tasks.join_all().await {
        all.unknown += one.unknown;
        all.not_done += one.not_done;
        one.done.into_iter().for_each(|id| all.add(id));
    }
    over.store(true, Ordering::Relaxed);
    disturber.await.expect("no panic");
    println!(
        "{} connections ended: {} done, {} unknown, {} not done",
        ended.load(Ordering::Relaxed),
        all.done.len(),
        all.unknown,
        all.not_done
    );
    all
}

#[test]
fn what_is_acknowledged_survives_connections_that_end() {
    survives(Schema::new());
}

#[test]
fn what_is_acknowledged_survives_pooled_connections_that_end() {
    // Its own: a pooler's connection has the name of whom it served last.
    let pooler = pooler();
    survives(Schema::behind(&pooler));
}

fn survives(schema: Schema) {
    block_on(async {
        let backend = Arc::new(schema.open().await);
        backend.ensure_queue(&ORDERS).await.expect("created");

        let (ended, failed) = (Arc::default(), Arc::default());
        let put = disturbed(&schema, &ended, || {
            let backend = Arc::clone(&backend);
            let (ended, failed) = (
                Arc::<AtomicUsize>::clone(&ended),
                Arc::<AtomicBool>::clone(&failed),
            );
            async move {
                let mut answered = Answered::default();
                let enough = |answered: &Answered| match ended.load(Ordering::Relaxed) {
                    few if few < ENDED => false,
                    many if many < ENDED_AT_MOST => {
                        answered.done.len() >= EACH && failed.load(Ordering::Relaxed)
                    }
                    _ => true,
                };
                while !enough(&answered) {
                    match backend.put(&ORDERS, NewMessage::new("one")).await {
                        Ok(put) => answered.add(put.id),
                        Err(error) => {
                            failed.store(true, Ordering::Relaxed);
                            answered.fail(&error);
                        }
                    }
                }
                answered
            }
        })
        .await;
        assert!(put.unknown + put.not_done > 0, "nobody was disturbed");
        let client = schema.connect().await;
        let stored = async || {
            let rows = client
                .query("SELECT seq FROM messages", &[])
                .await
                .expect("read");
            let id = |row: &tokio_postgres::Row| StorageId::new(row.get::<_, i64>(0).to_string());
            rows.iter().map(id).collect::<HashSet<_>>()
        };
        let after_puts = stored().await;
        assert!(
            put.done.is_subset(&after_puts),
            "an acknowledged put is lost"
        );
        let beyond = after_puts.len() - put.done.len();
        assert!(
            beyond <= put.unknown,
            "{beyond} puts were done that were said not to be"
        );

        let deleted = disturbed(&schema, &ended, || {
            let backend = Arc::clone(&backend);
            async move {
                let mut answered = Answered::default();
                loop {
                    let received = match backend.receive(&ORDERS, 1, LEASE).await {
                        Ok(none) if none.is_empty() => return answered,
                        Ok(received) => received,
                        // A receive without an answer may have leased messages for longer than the test.
                        Err(_) => continue,
                    };
                    for message in received {
                        match backend.delete(&ORDERS, &message.id, &message.receipt).await {
                            Ok(()) => answered.add(message.id),
                            Err(error) => answered.fail(&error),
                        }
                    }
                }
            }
        })
        .await;
        let left = stored().await;
        assert!(
            left.is_disjoint(&deleted.done),
            "an acknowledged delete was undone"
        );
        let gone = after_puts.len() - left.len();
        let known = deleted.done.len();
        assert!(
            (known..=known + deleted.unknown).contains(&gone),
            "{gone} are gone: {deleted:?}"
        );
    });
}
