//! Replies to an asker that is gone.

use std::future::IntoFuture as _;

use queue_runtime::request::RequestErrorKind;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{ErrorKind, FollowUp, QueueName};

use crate::transactions::bank::{Bank, Deposit, GUARD, Notice, begin, notice};

async fn reply_queues(bank: &Bank) -> u32 {
    let query = "SELECT count(*) FROM queue_queues WHERE name LIKE 'queue-replies-%'";
    let found = bank.connection.query_row(query, [], |row| row.get(0));
    found.expect("a number")
}

#[tokio::test]
async fn a_reply_to_an_asker_that_is_gone_is_left_out_of_the_transaction() {
    let mut bank = Bank::in_real_time().await;
    let asker = bank.other_service().await;
    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    let asked = asker.request(deposit).reply::<Notice>();
    let asked = tokio::spawn(asked.into_future());
    while bank.count("deposits").await == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reply_queues(&bank).await, 1);
    asked.abort();
    asker.delete_reply_queue().await;
    assert_eq!(reply_queues(&bank).await, 0);

    let deposit = bank.service.accept::<Deposit>().await.expect("no error");
    let deposit = deposit.expect("it was asked for");
    let tx = begin(&mut bank.connection);
    let follow_ups = [
        FollowUp::reply(&notice("done")),
        FollowUp::new(&notice("more")),
    ];
    let completing = deposit.complete_within(&tx, follow_ups).expect("written");
    tx.commit().expect("committed");
    completing.confirm().await.expect("it was committed");
    bank.assert(0, 0, 1).await;
    assert_eq!(reply_queues(&bank).await, 0);
}

#[tokio::test]
async fn an_asker_is_told_by_the_transaction_that_it_gets_no_reply() {
    let mut bank = Bank::in_real_time().await;
    let deposit = Deposit {
        number: 1,
        amount: 1,
    };
    let request = bank.service.request(deposit).reply::<Notice>();
    let asked = tokio::spawn(request.timeout(GUARD).into_future());
    let accept = bank.service.accept::<Deposit>().wait(GUARD);
    let deposit = accept.await.expect("no error").expect("asked");

    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.rollback().expect("rolled back");
    let error = completing.confirm().await.expect_err("rolled back");
    let queues = bank.service.queues().await.expect("lists");
    let replies = queues.iter().find(|queue| queue.is_reply_queue());
    let replies = replies.expect("it waits").as_str();
    assert_eq!(bank.count(replies).await, 0);
    assert!(!asked.is_finished(), "it waits on");

    let tx = begin(&mut bank.connection);
    let more = [FollowUp::new(&notice("more"))];
    let completing = error.delivery.complete_within(&tx, more).expect("written");
    tx.commit().expect("committed");
    completing.confirm().await.expect("it was committed");
    let error = asked.await.expect("no panic").expect_err("no reply");
    assert!(
        matches!(error.kind, RequestErrorKind::NotReplied),
        "{error}"
    );
    bank.assert(0, 0, 1).await;
}

#[tokio::test]
async fn nobody_else_creates_a_reply_queue() {
    let mut bank = Bank::open().await;
    let name = format!("queue-replies-{}", "0".repeat(32));
    let queue: QueueName = name.parse().expect("a name");
    let submit = || {
        bank.service
            .submit(notice("lost"))
            .to(queue.clone())
            .expect("a name")
    };
    let (outside, inside) = (submit(), submit());
    let refused = outside.encode_for_outbox().expect_err("a reply queue");
    let SubmitErrorKind::Storage(error) = refused.kind else {
        panic!("{refused}");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    let tx = begin(&mut bank.connection);
    let refused = inside.within(&tx).expect_err("nobody waits");
    let SubmitErrorKind::Storage(error) = refused.kind else {
        panic!("{refused}");
    };
    assert_eq!(error.kind(), ErrorKind::QueueNotFound);
    assert_eq!(error.queue(), Some(&queue));
    tx.commit().expect("committed");
    assert_eq!(reply_queues(&bank).await, 0);
}
