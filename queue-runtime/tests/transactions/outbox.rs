//! The statement by which other drivers put messages, as it is documented.

use std::time::Duration;

use queue_runtime::QueueService;
use queue_runtime::rusqlite::Connection;

use crate::bank::{Bank, Deposit};

/// The guide, and in it the statement.
const GUIDE: &str = include_str!("../../../docs/sqlite.md");

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
        let submit = submit.id("a").request("b");
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
    let tx = crate::bank::begin(&mut bank.connection);
    in_transaction.in_transaction(&tx).expect("written");
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
    for text in ["", "{}", "hello", r#"{"format":2,"queue":"deposits"}"#] {
        let refused = bank.connection.execute(statement(), [text]);
        let error = refused.expect_err(text).to_string();
        assert!(error.contains("not a message"), "{error}");
    }
    let refused = bank
        .connection
        .execute("INSERT INTO queue_outbox VALUES (NULL)", []);
    refused.expect_err("null");
    bank.assert(0, 0, 0).await;
}
