//! Transactions of `sqlx`.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::{
    Backend as _, BackendExt as _, Completion, NewMessage, Token, TransactionOutcome, Transactions,
    Written,
};
use queue_core::conformance::transactions::Write;
use queue_core::{ErrorKind, QueueName, Result};
use queue_postgres::PostgresTransactions;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::server::{Schema, block_on};

static ORDERS: QueueName = QueueName::from_static("orders");
static BILLS: QueueName = QueueName::from_static("bills");

async fn write(
    engine: &Arc<dyn Transactions>,
    connection: &mut PgConnection,
    completion: Option<Completion<'_>>,
) -> Result<Written> {
    let write = Write::new(vec![(BILLS.clone(), NewMessage::new("bill"))], completion);
    let engine = Arc::clone(engine);
    let written = engine.write::<PostgresTransactions, _, _>(connection, write);
    written.expect("its own engine").await
}

#[test]
fn rows_puts_and_completions_are_committed_together() {
    block_on(async {
        let schema = Schema::new();
        let backend = schema.open().await;
        backend.ensure_queue(&ORDERS).await.expect("created");
        backend
            .put(&ORDERS, NewMessage::new("order"))
            .await
            .expect("put");
        let received = backend.receive(&ORDERS, 1, Duration::from_secs(60)).await;
        let received = received.expect("received").remove(0);
        let engine = backend.transactions().expect("PostgreSQL has them");
        let mut connection = PgConnection::connect(schema.address())
            .await
            .expect("connected");
        let completion = || {
            let (id, receipt) = (&received.id, received.receipt.clone());
            Completion::new(&ORDERS, id, receipt, 1, Token::random())
        };
        for (committed, outcome, orders) in [
            (false, TransactionOutcome::RolledBack, 1),
            (true, TransactionOutcome::Committed, 0),
        ] {
            let mut tx = connection.begin().await.expect("begun");
            let written = write(&engine, &mut tx, Some(completion()))
                .await
                .expect("written");
            let gone = write(&engine, &mut tx, Some(completion())).await;
            assert!(gone.expect_err("it is completed").is_lease_gone());
            tx.execute("SELECT 1").await.expect("it goes on");
            if committed {
                tx.commit().await.expect("committed");
            } else {
                tx.rollback().await.expect("rolled back");
            }
            let outcomes = engine.outcomes(&[written.mark]).await.expect("answered");
            assert_eq!(outcomes, [outcome]);
            let properties = backend.properties(&ORDERS).await.expect("read");
            assert_eq!(properties.approximate_count, orders);
        }
        assert_eq!(
            backend
                .properties(&BILLS)
                .await
                .expect("read")
                .approximate_count,
            1
        );

        // Without a transaction, each statement would be committed by itself.
        let refused = write(&engine, &mut connection, None).await;
        assert_eq!(
            refused.expect_err("no transaction").kind(),
            ErrorKind::InvalidInput
        );
        let mut tx = connection.begin().await.expect("begun");
        tx.execute("SELECT 1 / 0").await.expect_err("no number");
        let refused = write(&engine, &mut tx, None)
            .await
            .expect_err("it is aborted");
        assert_eq!(refused.kind(), ErrorKind::Storage, "{refused:?}");
    });
}
