//! Unique keys of messages that are completed in a transaction.

use queue_runtime::Submitted;

use crate::transactions::bank::{Bank, Deposit, begin};

async fn submit(bank: &Bank) -> Submitted {
    let deposit = Deposit {
        number: 1,
        amount: 10,
    };
    let submitted = bank.service.submit(deposit).unique_until_settled().await;
    submitted.expect("answered")
}

#[tokio::test]
async fn a_key_is_released_if_the_transaction_is_committed() {
    let mut bank = Bank::open().await;
    submit(&bank).await;
    let deposit = bank.service.accept::<Deposit>().await.expect("no error");
    let deposit = deposit.expect("just submitted");
    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.rollback().expect("rolled back");
    assert!(submit(&bank).await.duplicate, "rolled back");
    let deposit = completing
        .confirm()
        .await
        .expect_err("rolled back")
        .delivery;

    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.commit().expect("committed");
    assert!(!submit(&bank).await.duplicate);
    completing.confirm().await.expect("committed");

    // Another message has taken the key by then.
    let deposit = bank.service.accept::<Deposit>().await.expect("no error");
    let deposit = deposit.expect("just submitted");
    let released = bank.service.submit(deposit.message().clone());
    assert!(released.release_unique().await.expect("answered"));
    let other = submit(&bank).await;
    assert!(!other.duplicate);
    let tx = begin(&mut bank.connection);
    let completing = deposit.complete_within(&tx, []).expect("written");
    tx.commit().expect("committed");
    completing.confirm().await.expect("committed");
    assert_eq!(submit(&bank).await.id, other.id);
}
