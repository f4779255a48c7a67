//! Transactions with messages of queues that are spread over shards of one file.

use std::sync::Mutex;

use queue_runtime::send::SubmitErrorKind;
use queue_runtime::sharded::Shards;
use queue_runtime::{ErrorKind, Failure, FollowUp, QueueService, Received, blocking};

use crate::transactions::bank::{Bank, Deposit, GUARD, add, begin, notice};

/// Adds each deposit in a transaction. Every third is rolled back at its first attempt.
async fn handle_all(bank: &Bank) -> usize {
    let connection = queue_runtime::sqlite::connect(bank.service.backend());
    let connection = Mutex::new(connection.expect("a connection"));
    let handle = move |deposit: Received<Deposit>| -> Result<(), Failure> {
        let mut connection = connection.lock().expect("it does not panic");
        let tx = begin(&mut connection);
        add(&tx, deposit.amount);
        deposit.complete_within(&tx, [FollowUp::new(&notice("more"))])?;
        if deposit.number.is_multiple_of(3) && deposit.dequeue_count() == 1 {
            tx.rollback()?;
            return Err("not this time".into());
        }
        tx.commit()?;
        Ok(())
    };
    let listener = bank.service.listener(blocking(handle)).until_empty();
    let at_once = queue_runtime::RetryPolicy::fixed(std::time::Duration::ZERO);
    let listener = listener.retry(at_once).start().expect("it starts");
    let report = tokio::time::timeout(GUARD, listener.drained()).await;
    report.expect("the queue becomes empty").info.completed
}

fn deposits(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Deposit> {
    numbers.map(|number| Deposit { number, amount: 10 })
}

#[tokio::test]
async fn rows_follow_ups_and_acknowledgement_are_one_step_while_shards_come_and_go() {
    let bank = Bank::in_shards(3).await;
    let shards = bank.service.shards().expect("it has shards");
    let (mut balance, mut handled) = (0, 0);
    for (round, number) in [(0, 8), (1, 2), (2, 4)] {
        let before = round * 30;
        let all = deposits(before..before + 15);
        bank.service.submit_all(all).await.expect("submitted");
        let packed = deposits(before + 15..before + 30);
        let packed = bank.service.submit_all(packed).packed();
        packed.await.expect("submitted");
        // Half of them are where messages are no longer put when they are handled.
        shards.resize(number).await.expect("resized");
        assert_eq!(handle_all(&bank).await, 30);
        (balance, handled) = (balance + 300, handled + 30);
        bank.assert(balance, 0, handled).await;
    }
}

#[tokio::test]
async fn a_transaction_sees_which_shards_there_are_when_it_puts() {
    let mut bank = Bank::in_shards(8).await;
    // A program that has not heard of the change yet.
    let file: std::sync::Arc<dyn queue_runtime::backend::Backend> =
        std::sync::Arc::new(bank.faults.clone());
    let other = QueueService::sharded([file], Shards::new(8))
        .connect()
        .await;
    let other = other.expect("connects");
    let resized = bank.service.shards().expect("shards").resize(1).await;
    assert_eq!(resized.expect("resized").retired, 7);
    let tx = begin(&mut bank.connection);
    for deposit in deposits(0..20) {
        other.submit(deposit).within(&tx).expect("put");
    }
    tx.commit().expect("committed");
    let on_first: i64 = bank
        .connection
        .query_row(
            "SELECT messages FROM queue_counts JOIN queue_queues ON id = queue WHERE name = 'deposits-s0'",
            [],
            |row| row.get(0),
        )
        .expect("it exists");
    assert_eq!(on_first, 20);
    assert_eq!(other.shards().expect("shards").shards(), 8);
    assert_eq!(handle_all(&bank).await, 20);
}

#[tokio::test]
async fn a_missing_queue_is_created_with_all_its_shards() {
    let mut bank = Bank::in_shards(4).await;
    let queue = bank.service.queue::<Deposit>().any().clone();
    queue.delete().await.expect("deleted");
    let shards = "SELECT count(*) FROM queue_queues WHERE name GLOB 'deposits-s[0-9]'";
    for (commits, expected) in [(false, 0), (true, 4)] {
        let tx = begin(&mut bank.connection);
        let [deposit] = [Deposit {
            number: 1,
            amount: 10,
        }];
        let put = bank.service.submit(deposit).within(&tx);
        put.expect("put");
        if commits { tx.commit() } else { tx.rollback() }.expect("ended");
        let found = bank.connection.query_row(shards, [], |row| row.get(0));
        assert_eq!(found, Ok(expected));
    }
    assert_eq!(handle_all(&bank).await, 1);
}

#[tokio::test]
async fn what_shards_cannot_do_is_refused() {
    let bank = Bank::in_shards(2).await;
    let deposit = || Deposit {
        number: 1,
        amount: 10,
    };
    let refused = bank.service.submit(deposit()).encode_for_outbox();
    let SubmitErrorKind::Storage(error) = refused.expect_err("it is not for shards").kind else {
        panic!("it is the storage that refuses")
    };
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("`submit_within` can"), "{error}");

    // On two files there is no transaction of both.
    let urls = ["one.db", "two.db"]
        .map(|name| format!("sqlite:{}", bank.folder.path().join(name).display()));
    let service = QueueService::sharded(urls, Shards::new(2))
        .connect()
        .await
        .expect("connects");
    let refused = queue_runtime::sqlite::connect(service.backend()).expect_err("two files");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
