//! The statement by which other drivers put messages, as it is documented.

use std::time::Duration;

use queue_runtime::clock::Clock as _;
use queue_runtime::sqlite::rusqlite::types::Null;
use queue_runtime::sqlite::rusqlite::{Connection, ToSql};
use queue_runtime::{QueueName, QueueService, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::transactions::bank::{Bank, Deposit};

/// The guide, and in it the statement.
const GUIDE: &str = include_str!("../../../../docs/sqlite.md");

fn statement() -> &'static str {
    let mut lines = GUIDE.lines();
    let found = lines.find(|line| line.starts_with("INSERT INTO queue_outbox"));
    found.expect("the guide shows the statement")
}

fn encode(service: &QueueService, number: u32) -> String {
    let submit = service.submit(Deposit { number, amount: 1 });
    submit.encode_for_outbox().expect("encoded")
}

#[tokio::test]
async fn the_documented_statement_puts_a_message() {
    let bank = Bank::open().await;
    // A plain connection, as another driver has.
    let mut other = Connection::open(bank.path()).expect("opened");
    let tx = other.transaction().expect("begun");
    tx.execute("UPDATE account SET balance = 1", [])
        .expect("updated");
    for number in 1..=2 {
        let put = tx.execute(statement(), [encode(&bank.service, number)]);
        put.expect("put");
    }
    assert_eq!(bank.count("deposits").await, 0);
    tx.commit().expect("committed");
    bank.assert(1, 2, 0).await;
    for number in 1..=2 {
        let deposit = bank.service.accept::<Deposit>().await.expect("no error");
        let deposit = deposit.expect("it was put");
        assert_eq!(*deposit.message(), Deposit { number, amount: 1 });
        deposit.complete().await.expect("it is like any other");
    }
    bank.assert(1, 0, 0).await;
}

#[tokio::test]
async fn a_message_of_the_outbox_has_the_rows_of_one_that_was_submitted() {
    let mut bank = Bank::open().await;
    let message = || {
        let submit = bank.service.submit(Deposit {
            number: 1,
            amount: 1,
        });
        let submit = submit.id("a").request_id("b");
        submit
            .delay(Duration::from_secs(5))
            .time_to_live(Duration::from_secs(60))
    };
    let encoded = message().encode_for_outbox().expect("encoded");
    bank.connection
        .execute(statement(), [encoded])
        .expect("put");
    bank.assert_sound();
    let in_transaction = message();
    let tx = crate::transactions::bank::begin(&mut bank.connection);
    in_transaction.within(&tx).expect("written");
    tx.commit().expect("committed");
    message().await.expect("submitted");
    bank.assert(0, 3, 0).await;
    let rows = "SELECT DISTINCT queue_schedule.queue, queue_messages.queue, visible_at - inserted_at, dequeue_count, \
        queue_schedule.expires_at - inserted_at, queue_messages.expires_at - inserted_at, typeof(salt), typeof(nonce), \
        typeof(checksum), body FROM queue_schedule JOIN queue_messages USING (seq)";
    let distinct = format!("SELECT count(*) FROM ({rows})");
    let distinct = bank.connection.query_row(&distinct, [], |row| row.get(0));
    assert_eq!(distinct, Ok(1));
    bank.clock.advance(Duration::from_secs(5));
    for _ in 0..3 {
        let found = bank.service.accept::<Deposit>().await.expect("no error");
        drop(found.expect("neither damaged nor late"));
    }
    bank.clock.advance(Duration::from_secs(60));
    let found = bank.service.accept::<Deposit>().await.expect("no error");
    assert!(found.is_none(), "all have expired");
}

#[tokio::test]
async fn the_outbox_creates_the_queue() {
    let bank = Bank::open().await;
    let queue = bank
        .service
        .queue_named::<Deposit>("elsewhere")
        .expect("a name");
    let submit = queue.submit(Deposit {
        number: 1,
        amount: 1,
    });
    let encoded = submit.encode_for_outbox().expect("encoded");
    bank.connection
        .execute(statement(), [encoded])
        .expect("put");
    assert_eq!(bank.count("elsewhere").await, 1);
    let found = queue.accept().await.expect("no error");
    assert!(found.is_some());
}

#[tokio::test]
async fn what_is_no_encoded_message_is_refused() {
    let bank = Bank::open().await;
    let refused = |parameter: &dyn ToSql| {
        let refused = bank.connection.execute(statement(), [parameter]);
        let error = refused.expect_err("no message").to_string();
        assert!(error.contains("not a message"), "{error}");
    };
    for text in ["", "[]", "7", "\"text\"", "null", "hello", "{\"format\":1"] {
        refused(&text);
    }
    refused(&Null);
    refused(&7);
    refused(&[0x7c_u8, 0xff]);
    bank.assert(0, 0, 0).await;
}

/// Values of any type and range that a field may have, but should not.
fn values(field: &str, encoded: &Value) -> Vec<Value> {
    let mut values = vec![
        json!(null),
        json!(true),
        json!(false),
        json!([]),
        json!([1]),
        json!({"value": 1}),
        json!(""),
        json!("zzz"),
        json!("7"),
        json!("deposits\0"),
        json!("../../etc/passwd"),
        json!("Deposits"),
        json!("-deposits"),
        json!("deposits-"),
        json!("de--posits"),
        json!("de"),
        json!("d".repeat(64)),
        json!("depösits"),
        json!(format!("queue-replies-{}", "0".repeat(32))),
        json!("abc"),
        json!(0.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(-1),
        json!(0),
        json!(1),
        json!(1_i64 << 32),
        json!(253_402_207_201_000_000_i64),
    ];
    if let Some(number) = encoded[field].as_i64() {
        const DAY: i64 = 24 * 3600 * 1_000_000;
        values.extend([-8 * DAY, -1, 1, 8 * DAY].map(|step| json!(number.saturating_add(step))));
        values.push(json!(number as f64));
        values.push(json!(number.to_string()));
    }
    values
}

/// Whether a value of a field can be one that was encoded, if the other fields stay as they are.
fn may_be(field: &str, value: &Value, encoded: &Value) -> bool {
    let time = |field: &str| encoded[field].as_i64().expect("a time");
    let within = |from: i64, to: i64| value.as_i64().is_some_and(|n| (from..=to).contains(&n));
    const WEEK: i64 = 7 * 24 * 3600 * 1_000_000;
    match field {
        "format" => within(1, 1),
        "queue" => value
            .as_str()
            .is_some_and(|name| QueueName::new(name).is_ok_and(|name| !name.is_reply_queue())),
        "salt" | "nonce" => value.is_i64(),
        "checksum" => within(0, u32::MAX.into()),
        // It is before the other two, and the clock stands at the time of `encoded`.
        "inserted_at" => {
            within(time("visible_at") - WEEK, time("visible_at")) && within(0, i64::MAX)
        }
        "visible_at" => {
            within(time("inserted_at"), time("inserted_at") + WEEK) && within(0, time("expires_at"))
        }
        "expires_at" => value.is_null() || within(time("visible_at"), 253_402_207_200_999_999),
        "body" => value.as_str().is_some_and(|body| {
            body.len() % 2 == 0 && body.bytes().all(|byte| byte.is_ascii_hexdigit())
        }),
        other => panic!("{other} is unknown"),
    }
}

/// Submits and accepts a message, lists the queues, and opens the file once more.
async fn assert_nothing_else_suffers(bank: &Bank) {
    let number = 7;
    let deposit = || Deposit { number, amount: 1 };
    let url = format!("sqlite:{}", bank.path().display());
    let again = QueueService::connect(&url).await.expect("it opens");
    for service in [&bank.service, &again] {
        service.queues().await.expect("all have names");
        service.submit(deposit()).await.expect("submitted");
        loop {
            let accepted = service.accept::<Deposit>().await.expect("no error");
            let delivery = accepted.expect("at least that");
            let own = *delivery.message() == deposit();
            delivery.complete().await.expect("completed");
            if own {
                break;
            }
        }
    }
    bank.assert_sound();
    let latest = "SELECT latest FROM queue_store";
    let latest: i64 = bank
        .connection
        .query_row(latest, [], |row| row.get(0))
        .expect("a time");
    let now = bank
        .clock
        .now()
        .as_microsecond()
        .max(Timestamp::now().as_microsecond());
    assert!(latest <= now, "a row has moved the time to {latest}");
}

#[tokio::test]
async fn a_row_with_a_wrong_field_is_refused_and_nothing_else_suffers() {
    let bank = Bank::open().await;
    let submit = bank.service.submit(Deposit {
        number: 1,
        amount: 1,
    });
    let submit = submit.time_to_live(Duration::from_secs(60));
    let encoded = submit.encode_for_outbox().expect("encoded");
    let encoded: Value = serde_json::from_str(&encoded).expect("JSON");
    let (mut refused, mut put) = (0, 0);
    for field in encoded.as_object().expect("an object").keys() {
        let mut rows: Vec<(Value, bool)> = Vec::new();
        for value in values(field, &encoded) {
            let mut row = encoded.clone();
            let valid = may_be(field, &value, &encoded);
            row[field] = value;
            rows.push((row, valid));
        }
        let mut missing = encoded.clone();
        missing.as_object_mut().expect("an object").remove(field);
        rows.push((missing, false));
        for (row, valid) in rows {
            // Other conflict clauses do not let it pass either.
            let or_ignore = statement().replace("INSERT", "INSERT OR IGNORE");
            for statement in [statement(), &or_ignore] {
                let done = bank.connection.execute(statement, [row.to_string()]);
                assert_eq!(done.is_ok(), valid, "{field}: {row}: {done:?}");
                match done {
                    Ok(_) => put += 1,
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(&format!("`{field}`")), "{row}: {text}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 300 && put > 20, "{refused} refused, {put} put");
    assert_nothing_else_suffers(&bank).await;
}

#[tokio::test]
async fn rows_of_random_fields_are_refused_or_harmless() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let bank = Bank::open().await;
    let encoded: Value = serde_json::from_str(&encode(&bank.service, 1)).expect("JSON");
    let fields: Vec<&String> = encoded.as_object().expect("an object").keys().collect();
    let values: Vec<Value> = fields
        .iter()
        .flat_map(|field| values(field, &encoded))
        .collect();
    let mut put = 0;
    for _ in 0..3000 {
        let mut row = encoded.clone();
        for _ in 0..random.random_range(1..=3) {
            let field = fields[random.random_range(0..fields.len())];
            row[field] = values[random.random_range(0..values.len())].clone();
        }
        let done = bank.connection.execute(statement(), [row.to_string()]);
        put += u32::from(done.is_ok());
    }
    println!("{put} were put");
    assert!(put > 0);
    assert_nothing_else_suffers(&bank).await;
}

#[tokio::test]
async fn no_row_moves_the_time_of_all() {
    const DAY: i64 = 24 * 3600 * 1_000_000;
    let bank = Bank::open().await;
    let encoded: Value = serde_json::from_str(&encode(&bank.service, 1)).expect("JSON");
    let wall = Timestamp::now().as_microsecond();
    for (ahead, accepted) in [(6 * DAY, true), (8 * DAY, false), (365 * 100 * DAY, false)] {
        let mut row = encoded.clone();
        (row["inserted_at"], row["visible_at"]) = (json!(wall + ahead), json!(wall + ahead));
        let done = bank.connection.execute(statement(), [row.to_string()]);
        assert_eq!(done.is_ok(), accepted, "{ahead}: {done:?}");
        let error = done.map_or_else(|error| error.to_string(), |_| "`inserted_at`".to_owned());
        assert!(error.contains("`inserted_at`"), "{error}");
    }
    assert_nothing_else_suffers(&bank).await;
}

#[tokio::test]
async fn our_tables_take_no_value_of_another_type() {
    let bank = Bank::open().await;
    for harm in [
        "UPDATE queue_store SET latest = 'zzz'",
        "UPDATE queue_store SET latest = NULL",
        "INSERT INTO queue_queues (name, metadata) VALUES ('../../etc/passwd', '{}')",
        "INSERT INTO queue_schedule VALUES (1, 'soon', 1, 1, 0, NULL)",
    ] {
        bank.connection.execute(harm, []).expect_err(harm);
    }
    assert_nothing_else_suffers(&bank).await;
}
