//! Transactions of the driver `sqlx`.

use queue_core::clock::BoxFuture;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio_postgres::error::SqlState;

use crate::failure::{self, Failure};
use crate::transactions::{Call, Connection, storage_transaction};

impl Connection for &mut PgConnection {
    fn text<'c>(&'c mut self, sql: &'c str) -> BoxFuture<'c, failure::Result<String>> {
        Box::pin(async move {
            let text = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
            // Not prepared: a pooler may give the transaction a session that others had before.
            text.persistent(false)
                .fetch_one(&mut **self)
                .await
                .map_err(failed)
        })
    }

    fn call<'c>(&'c mut self, sql: &'c str, call: Call) -> BoxFuture<'c, failure::Result<String>> {
        Box::pin(async move {
            let called = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
                .bind(call.request)
                .bind(call.bodies)
                .bind(call.attachments)
                .persistent(false);
            called.fetch_one(&mut **self).await.map_err(failed)
        })
    }
}

fn failed(error: sqlx::Error) -> Failure {
    let code = error.as_database_error().and_then(|error| error.code());
    let code = code.map(|code| SqlState::from_code(&code));
    Failure::of_another_driver(code.as_ref(), &error)
}

// `&mut *tx` of a `sqlx::Transaction`, or a connection on which a transaction was begun.
storage_transaction!('t, &'t mut PgConnection);
