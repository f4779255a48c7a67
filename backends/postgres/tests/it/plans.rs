//! No operation reads more of a long queue than it has to, neither by plans that were made when the tables were empty, nor by
//! those of the statistics of full ones.

use std::time::{Duration, Instant};

use queue_core::QueueName;
use queue_core::backend::{
    Backend as _, BackendExt as _, GROUP_LIMIT, ItemSet, Metadata, NewMessage, Op, PutBackPlace,
    ReceivedMessage, Swap,
};
use queue_core::idempotency::WorkKey;
use queue_core::store_clock::BEHIND;
use queue_postgres::PostgresBackend;
use tokio_postgres::Client;

use crate::server::{GUARD, Schema, block_on};

static ORDERS: QueueName = QueueName::from_static("orders");
const MESSAGES: i64 = 100_000;
/// Far more than the operations need, and far fewer than there are messages.
const MOST: i64 = MESSAGES / 20;

/// What the server knows of the tables when it plans.
#[derive(Debug, Clone, Copy)]
enum Statistics {
    OfEmptyTables,
    OfFullTables,
}

/// Runs a test by plans of either statistics.
fn by_all_statistics<F: Future<Output = ()>>(test: impl Fn(Statistics) -> F) {
    for statistics in [Statistics::OfEmptyTables, Statistics::OfFullTables] {
        println!("statistics {statistics:?}");
        block_on(test(statistics));
    }
}

/// Inserts many messages, and returns a connection and what was read until then.
async fn fill(schema: &Schema, insert: &str, statistics: Statistics) -> (Client, i64) {
    let many = format!("{insert} FROM queues, generate_series(1, {MESSAGES}) AS number");
    schema.execute(&many).await;
    if let Statistics::OfFullTables = statistics {
        schema.execute("ANALYZE messages").await;
    }
    let client = schema.connect().await;
    let before = read(&client, schema).await;
    (client, before)
}

/// Ends the sessions of a backend, and asserts that they have read few messages.
async fn assert_few_were_read(
    backend: PostgresBackend,
    (client, before): (Client, i64),
    schema: &Schema,
) {
    end(backend, &client, schema).await;
    let read = read(&client, schema).await - before;
    println!("{read} rows were read");
    assert!((1..MOST).contains(&read), "{read} rows were read");
}

/// Carries out each kind of operation once.
async fn each_operation(backend: &PostgresBackend, number: u32) {
    const MINUTE: Duration = Duration::from_secs(60);

    let put = async || {
        let put = backend.put(&ORDERS, NewMessage::new("one")).await;
        put.expect("put")
    };
    put().await;
    let received = backend.receive(&ORDERS, 1, MINUTE).await.expect("received");
    let [message] = &received[..] else {
        panic!("one is visible");
    };
    let (id, receipt) = (&message.id, &message.receipt);
    let renewed = backend.renew(&ORDERS, id, receipt, MINUTE, None).await;
    let receipt = renewed.expect("renewed").receipt;
    let back = PutBackPlace::After(MINUTE);
    let back = backend.put_back(&ORDERS, id, &receipt, back, None).await;
    let receipt = back.expect("put back").receipt;
    let part = backend.attachment(&ORDERS, id, None, 0).await;
    part.expect("read");
    backend
        .delete(&ORDERS, id, &receipt)
        .await
        .expect("deleted");
    let pack = put().await;
    let items = Op::DeleteItems {
        queue: ORDERS.clone(),
        id: pack.id,
        receipt: pack.receipt,
        items: ItemSet::from_iter([0]),
        of: 1,
    };
    backend.apply(vec![items].into()).await.expect("deleted");
    let swap = Swap::new(WorkKey::new("unique", format!("{number}")), "held", MINUTE);
    let conditional = backend.put_if(&ORDERS, Some(NewMessage::new("two")), &swap);
    conditional.await.expect("put");
    backend.peek(&ORDERS, 1).await.expect("peeked");
    backend.browse(&ORDERS, None, 1).await.expect("browsed");
    backend.properties(&ORDERS).await.expect("read");
    let two = backend.receive(&ORDERS, 1, MINUTE).await.expect("received");
    for message in two {
        let deleted = backend.delete(&ORDERS, &message.id, &message.receipt);
        deleted.await.expect("deleted");
    }
    let none = backend.receive(&ORDERS, 1, MINUTE).await.expect("received");
    assert!(none.is_empty());
}

#[test]
fn operations_read_a_few_rows_of_many() {
    by_all_statistics(async |statistics| {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        each_operation(&backend, 1).await;
        let hidden = "INSERT INTO messages (seq, queue, visible_at, nonce, inserted_at, body)
            SELECT 1000000 + number, queues.id, now_us() + 3600000000 + number, gen_random_uuid(), now_us(), ''";
        let before = fill(&schema, hidden, statistics).await;
        each_operation(&backend, 2).await;
        assert_few_were_read(backend, before, &schema).await;
    });
}

#[test]
fn a_group_with_many_messages_is_not_read() {
    groups_are_not_read(None, "'long'", &BEHIND.to_string());
}

#[test]
fn a_group_in_turns_with_many_messages_is_not_read() {
    for limit in ["2", "unlimited"] {
        groups_are_not_read(
            Some(limit),
            "'long'",
            "249000000000000000 + now_us() + number",
        );
    }
}

#[test]
fn many_groups_are_not_read() {
    for limit in [None, Some("2")] {
        groups_are_not_read(limit, "'long ' || number", "now_us() + 3600000000 + number");
    }
}

fn groups_are_not_read(limit: Option<&str>, group: &str, visible_at: &str) {
    by_all_statistics(async |statistics| {
        let schema = Schema::new();
        let backend = schema.open().await;
        let mut metadata = Metadata::new();
        if let Some(limit) = limit {
            metadata.insert(GROUP_LIMIT, limit).expect("valid");
        }
        let created = backend.create_queue(&ORDERS, &metadata).await;
        created.expect("created");
        let in_group = |group| NewMessage::new("one").with_group(Some(group));
        let handle = async |expected: usize| {
            let received = backend.receive(&ORDERS, 8, Duration::from_secs(60)).await;
            let received = received.expect("received");
            // Of a group in turns that has many, there may be more.
            let found = received.len();
            assert!(
                found == expected || limit.is_some() && found > expected,
                "{found} {expected}"
            );
            for message in received {
                let deleted = backend.delete(&ORDERS, &message.id, &message.receipt);
                deleted.await.expect("deleted");
            }
        };
        backend.put(&ORDERS, in_group("short")).await.expect("put");
        handle(1).await;
        let many = format!(
            "INSERT INTO messages (seq, queue, visible_at, nonce, inserted_at, body, \"group\", place)
             SELECT 1000000 + number, queues.id, {visible_at}, gen_random_uuid(), now_us(), '', {group}, ({visible_at}) % 249000000000000000"
        );
        let before = fill(&schema, &many, statistics).await;
        for body in ["short", "long"] {
            backend.put(&ORDERS, in_group(body)).await.expect("put");
        }
        handle(2).await;
        for _ in 0..3 {
            backend.put(&ORDERS, in_group("short")).await.expect("put");
            handle(1).await;
        }
        assert_few_were_read(backend, before, &schema).await;
    });
}

#[test]
fn an_expired_message_before_many_others_is_passed_at_once() {
    by_all_statistics(async |statistics| {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        let visible = "INSERT INTO messages (seq, queue, visible_at, nonce, inserted_at, expires_at, body)
            SELECT 1000000 + number, queues.id, 1000 + number, gen_random_uuid(), 0, CASE number WHEN 1 THEN 5000 END, ''";
        let before = fill(&schema, visible, statistics).await;
        let received = backend.receive(&ORDERS, 1, Duration::from_secs(60)).await;
        assert_eq!(received.expect("received").len(), 1);
        assert_few_were_read(backend, before, &schema).await;
    });
}

#[test]
fn what_an_open_snapshot_keeps_is_not_read_by_every_receive() {
    const PASSED: usize = 20_000;
    const BATCH: usize = 32;

    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        let snapshot = schema.connect().await;
        let hold = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM messages";
        snapshot.batch_execute(hold).await.expect("held");
        let client = schema.connect().await;
        let before = read(&client, &schema).await;
        let put = Op::Put {
            queue: ORDERS.clone(),
            message: NewMessage::new("one"),
        };
        let mut passed = 0;
        // Always more than are received: an empty queue is read from its start.
        let mut puts = 2 * BATCH;
        while passed < PASSED {
            let put = vec![put.clone(); puts];
            backend.apply(put.into()).await.expect("put");
            let received = backend.receive(&ORDERS, BATCH, Duration::from_secs(600));
            let received = received.await.expect("received");
            assert_eq!(received.len(), BATCH);
            let delete = |message: &ReceivedMessage| Op::Delete {
                queue: ORDERS.clone(),
                id: message.id.clone(),
                receipt: message.receipt.clone(),
                moved: false,
            };
            let deletes: Vec<Op> = received.iter().map(delete).collect();
            backend.apply(deletes.into()).await.expect("deleted");
            (passed, puts) = (passed + BATCH, BATCH);
        }
        end(backend, &client, &schema).await;
        let read = (read(&client, &schema).await - before) as usize;
        // Half of what passed, for each receive, if each read what is kept.
        let by_each = PASSED / BATCH * PASSED / 2;
        assert!(
            (PASSED..by_each / 4).contains(&read),
            "{read} rows were read"
        );
        drop(snapshot);
    });
}

/// Returns how many rows and index entries of messages were read, by sessions that have ended.
async fn read(client: &Client, schema: &Schema) -> i64 {
    let read = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = $1
            AND relname = 'messages')::bigint
        + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'messages')";
    let row = client.query_one(read, &[&schema.name()]).await;
    row.expect("read").get(0)
}

/// Ends the sessions of a backend: the server publishes what a session has read when it ends, at the latest.
async fn end(backend: PostgresBackend, client: &Client, schema: &Schema) {
    drop(backend);
    let started = Instant::now();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    loop {
        let row = client.query_one(sessions, &[&schema.name()]).await;
        if row.expect("counted").get::<_, i64>(0) == 0 {
            return;
        }
        assert!(started.elapsed() < GUARD, "a connection stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
