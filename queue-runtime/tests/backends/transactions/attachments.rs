//! Payloads that do not fit their message, in the application's transaction.

use queue_runtime::send::SubmitErrorKind;
use queue_runtime::sqlite::rusqlite::Connection;
use queue_tests::incompressible;

use crate::transactions::bank::{Bank, Notice, begin, notice};

const SIZE: usize = 5 * 512 * 1024;

fn stored(connection: &Connection) -> i64 {
    let rows = "SELECT (SELECT count(*) FROM queue_attached) + (SELECT count(*) FROM queue_attachment_parts)";
    let rows = connection.query_row(rows, [], |row| row.get(0));
    rows.expect("counted")
}

#[tokio::test]
async fn a_large_message_is_submitted_with_the_transaction_or_not_at_all() {
    let mut bank = Bank::open().await;
    let text = incompressible(SIZE);
    let service = bank.service.clone();
    let submit = |bank: &mut Bank, commit: bool| {
        let tx = begin(&mut bank.connection);
        service.submit_within(&tx, notice(&text)).expect("written");
        if commit {
            tx.commit().expect("committed");
        } else {
            tx.rollback().expect("rolled back");
        }
    };
    submit(&mut bank, false);
    assert_eq!(stored(&bank.connection), 0);
    submit(&mut bank, true);
    assert!(stored(&bank.connection) > 2, "one message and its parts");
    let delivery = service.accept::<Notice>().await.expect("no error");
    let delivery = delivery.expect("committed");
    assert_eq!(delivery.message().text, text);
    delivery.complete().await.expect("completed");
}

#[tokio::test]
async fn the_outbox_takes_none() {
    let bank = Bank::open().await;
    let encoded = bank
        .service
        .submit(notice(&incompressible(SIZE)))
        .encode_for_outbox();
    let error = encoded.expect_err("too large for a row");
    let SubmitErrorKind::Storage(problem) = &error.kind else {
        panic!("{error}")
    };
    assert!(
        problem.to_string().contains("takes no attachments"),
        "{problem}"
    );
}
