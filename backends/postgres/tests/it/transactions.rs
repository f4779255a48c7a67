//! Transactions of an application under their conformance suite, and what only PostgreSQL can get wrong.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::{
    Attachment, AttachmentPart, Backend, BackendExt as _, Completion, Mark, NewMessage, Token,
    TransactionOutcome, Written,
};
use queue_core::clock::BoxFuture;
use queue_core::conformance::OpenedBackend;
use queue_core::conformance::transactions::{End, Harness, OpenedTransactions, Step, Write};
use queue_core::{ErrorKind, QueueName, Result};
use queue_postgres::PostgresTransactions;

use crate::conformance::PostgresStore;
use crate::server;

struct TransactionHarness;

#[async_trait]
impl Harness for TransactionHarness {
    async fn open(&self) -> Box<dyn OpenedTransactions> {
        let store = PostgresStore::open().await;
        store
            .schema
            .execute("CREATE TABLE application (row text)")
            .await;
        Box::new(Transacting(store))
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        server::block_on(test);
    }
}

struct Transacting(PostgresStore);

#[async_trait]
impl OpenedTransactions for Transacting {
    fn client(&self) -> Arc<dyn Backend> {
        self.0.client()
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.0.reopen().await
    }

    async fn advance(&self, duration: Duration) {
        self.0.advance(duration).await;
    }

    async fn transact(&self, steps: Vec<Step<'_>>, end: End) -> Vec<Result<Written>> {
        let engine = self.client().transactions().expect("PostgreSQL has them");
        let mut client = self.0.schema.connect().await;
        let transaction = client.transaction().await.expect("begun");
        let mut answers: Vec<Result<Written>> = Vec::new();
        for step in steps {
            match step {
                Step::Write(puts, completion) => {
                    let write = Write::new(puts, completion);
                    let written = Arc::clone(&engine)
                        .write::<PostgresTransactions, _, _>(&transaction, write);
                    answers.push(written.expect("its own engine").await);
                }
                Step::Row(row) => {
                    let insert = "INSERT INTO application VALUES ($1)";
                    transaction
                        .execute(insert, &[&row])
                        .await
                        .expect("inserted");
                }
                Step::Meanwhile(other) => {
                    let written = answers.iter().flatten();
                    other(written.map(|written| written.mark).collect()).await;
                }
            }
        }
        match end {
            End::Commit => transaction.commit().await.expect("committed"),
            End::RollBack => transaction.rollback().await.expect("rolled back"),
            End::Drop => drop(transaction),
        }
        answers
    }

    async fn rows(&self) -> Vec<String> {
        let client = self.0.schema.connect().await;
        let rows = client.query("SELECT row FROM application", &[]).await;
        let rows = rows.expect("the table exists");
        rows.iter().map(|row| row.get(0)).collect()
    }
}

queue_core::transaction_tests!(TransactionHarness);

static ORDERS: QueueName = QueueName::from_static("orders");

/// Puts a message within a transaction of a connection to the store.
async fn put(
    store: &PostgresStore,
    transaction: &tokio_postgres::Transaction<'_>,
) -> Result<Written> {
    let engine = store.client().transactions().expect("PostgreSQL has them");
    let write = Write::new(vec![(ORDERS.clone(), NewMessage::new("one"))], None);
    let written = engine.write::<PostgresTransactions, _, _>(transaction, write);
    written.expect("its own engine").await
}

#[test]
fn a_connection_whose_commits_may_be_lost_or_to_another_database_is_refused() {
    server::block_on(async {
        let store = PostgresStore::open().await;
        for (set_up, told) in [
            ("SET synchronous_commit = off", "`synchronous_commit`"),
            (
                "SET default_transaction_isolation = 'repeatable read'",
                "`repeatable read`",
            ),
            (
                "UPDATE version SET identity = gen_random_uuid()",
                "another database",
            ),
        ] {
            let mut client = store.schema.connect().await;
            client.batch_execute(set_up).await.expect("executed");
            let transaction = client.transaction().await.expect("begun");
            let refused = put(&store, &transaction).await.expect_err(told);
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
            assert!(refused.to_string().contains(told), "{refused}");
            transaction
                .execute("SELECT 1", &[])
                .await
                .expect("it goes on");
        }
    });
}

#[test]
fn a_transaction_that_has_ended_writes_nothing() {
    server::block_on(async {
        let store = PostgresStore::open().await;
        let mut client = store.schema.connect().await;
        let transaction = client.transaction().await.expect("begun");
        transaction.batch_execute("COMMIT").await.expect("ended");
        let refused = put(&store, &transaction).await.expect_err("it has ended");
        assert!(
            refused.to_string().contains("the transaction is not open"),
            "{refused}"
        );
        let queues = store.client().list_queues("").await.expect("listed");
        assert!(queues.is_empty(), "{queues:?}");
    });
}

#[test]
fn what_another_transaction_completes_is_refused_without_ending_the_transaction() {
    server::block_on(async {
        let store = PostgresStore::open().await;
        let backend = store.client();
        backend.ensure_queue(&ORDERS).await.expect("created");
        backend
            .put(&ORDERS, NewMessage::new("one"))
            .await
            .expect("put");
        let received = backend.receive(&ORDERS, 1, Duration::from_secs(30)).await;
        let received = received.expect("received").remove(0);
        let engine = backend.transactions().expect("PostgreSQL has them");
        let complete = async |transaction: &tokio_postgres::Transaction<'_>| {
            let (id, receipt) = (&received.id, received.receipt.clone());
            let completion = Completion::new(&ORDERS, id, receipt, 1, Token::random());
            let write = Write::new(Vec::new(), Some(completion));
            let written =
                Arc::clone(&engine).write::<PostgresTransactions, _, _>(transaction, write);
            written.expect("its own engine").await
        };
        let (mut first, mut second) = (store.schema.connect().await, store.schema.connect().await);
        let (first, second) = (first.transaction().await, second.transaction().await);
        let (first, second) = (first.expect("begun"), second.expect("begun"));
        let mark = complete(&first).await.expect("written").mark;
        let refused = complete(&second).await.expect_err("the first holds it");
        assert_eq!(refused.kind(), ErrorKind::Timeout, "{refused}");
        // Neither a renewal nor a receive waits for long, nor does it spoil what others do.
        let renewed = backend.renew(
            &ORDERS,
            &received.id,
            &received.receipt,
            Duration::from_secs(60),
            None,
        );
        let put = backend.put(&ORDERS, NewMessage::new("two"));
        let (renewed, put) = tokio::join!(renewed, put);
        assert_eq!(renewed.expect_err("it is held").kind(), ErrorKind::Timeout);
        put.expect("nobody holds it");
        first.rollback().await.expect("rolled back");
        complete(&second).await.expect("nobody holds it now");
        second.commit().await.expect("committed");
        let outcomes = engine.outcomes(&[mark]).await.expect("answered");
        assert_eq!(outcomes, [TransactionOutcome::RolledBack]);
    });
}

#[test]
fn a_savepoint_that_was_rolled_back_completes_nothing_although_its_transaction_was_committed() {
    server::block_on(async {
        let store = PostgresStore::open().await;
        let backend = store.client();
        backend.ensure_queue(&ORDERS).await.expect("created");
        backend
            .put(&ORDERS, NewMessage::new("one"))
            .await
            .expect("put");
        let received = backend.receive(&ORDERS, 1, Duration::from_secs(30)).await;
        let received = received.expect("received").remove(0);
        let engine = backend.transactions().expect("PostgreSQL has them");
        let mut client = store.schema.connect().await;
        let mut transaction = client.transaction().await.expect("begun");
        let savepoint = transaction.transaction().await.expect("a savepoint");
        let completion = Completion::new(
            &ORDERS,
            &received.id,
            received.receipt.clone(),
            1,
            Token::random(),
        );
        let write = Write::new(Vec::new(), Some(completion));
        let written = Arc::clone(&engine).write::<PostgresTransactions, _, _>(&savepoint, write);
        let written = written.expect("its own engine").await.expect("written");
        savepoint.rollback().await.expect("rolled back");
        transaction.commit().await.expect("committed");
        let outcomes = engine.outcomes(&[written.mark]).await.expect("answered");
        assert_eq!(outcomes, [TransactionOutcome::RolledBack]);
        // A number that this server has not given yet.
        let unknown = Mark::new(u64::from(u32::MAX), written.mark.token());
        let outcomes = engine.outcomes(&[unknown]).await.expect("answered");
        assert_eq!(outcomes, [TransactionOutcome::RolledBack]);
    });
}

#[test]
fn data_is_stored_and_removed_with_its_message() {
    server::block_on(async {
        let store = PostgresStore::open().await;
        let engine = store.client().transactions().expect("PostgreSQL has them");
        let mut client = store.schema.connect().await;
        for (committed, parts) in [(false, 0), (true, 3)] {
            let transaction = client.transaction().await.expect("begun");
            let mut message = NewMessage::new("large");
            message.attachment = Some(Attachment::New(vec![7; 2_500_000].into()));
            let write = Write::new(vec![(ORDERS.clone(), message)], None);
            let engine = Arc::clone(&engine);
            let written = engine.write::<PostgresTransactions, _, _>(&transaction, write);
            let written = written.expect("its own engine").await.expect("written");
            if committed {
                transaction.commit().await.expect("committed");
                let id = &written.receipts[0].id;
                let backend = store.client();
                let end = backend.attachment(&ORDERS, id, None, 2_499_999);
                let end = end.await.expect("read");
                assert_eq!(end, AttachmentPart::Data(vec![7].into()));
            } else {
                transaction.rollback().await.expect("rolled back");
            }
            let count = "SELECT count(*) FROM attachments";
            let stored = client.query_one(count, &[]).await.expect("counted");
            assert_eq!(stored.get::<_, i64>(0), parts);
        }
    });
}

#[test]
fn two_that_create_the_same_queues_neither_wait_for_long_nor_end_each_other() {
    server::block_on(async {
        let store = PostgresStore::open().await;
        let engine = store.client().transactions().expect("PostgreSQL has them");
        let names = ["one", "two"].map(QueueName::from_static);
        let put = async |transaction: &tokio_postgres::Transaction<'_>, queue: &QueueName| {
            let write = Write::new(vec![(queue.clone(), NewMessage::new("it"))], None);
            let engine = Arc::clone(&engine);
            let written = engine.write::<PostgresTransactions, _, _>(transaction, write);
            written.expect("its own engine").await
        };
        let (mut first, mut second) = (store.schema.connect().await, store.schema.connect().await);
        let (first, second) = (first.transaction().await, second.transaction().await);
        let (first, second) = (first.expect("begun"), second.expect("begun"));
        put(&first, &names[0]).await.expect("written");
        put(&second, &names[1]).await.expect("written");
        for (transaction, queue) in [(&first, &names[1]), (&second, &names[0])] {
            let refused = put(transaction, queue)
                .await
                .expect_err("the other creates it");
            assert_eq!(refused.kind(), ErrorKind::Timeout, "{refused}");
        }
        first.commit().await.expect("committed");
        put(&second, &names[0]).await.expect("it is there now");
        second.commit().await.expect("committed");
        let queues = store.client().list_queues("").await.expect("listed");
        assert_eq!(queues, names);
    });
}
