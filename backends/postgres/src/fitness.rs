//! What a server, and the tables in it, must be like, at each connection.

use queue_core::{Error, ErrorKind, Operation, Result, RetryAdvice};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use crate::failure::Failure;

/// The oldest release with everything that the statements need.
const OLDEST: i32 = 14_00_00;

/// Refuses a server that could lose what it has acknowledged, or that lacks what the statements need.
pub(crate) async fn check_server(client: &Client) -> Result<()> {
    let asked = client
        .query_one(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
             pg_is_in_recovery(), current_setting('server_version_num')::integer",
            &[],
        )
        .await;
    let row = asked.map_err(opening)?;
    for (at, setting) in ["fsync", "full_page_writes"].into_iter().enumerate() {
        let value: String = read(&row, at)?;
        if value != "on" {
            return Err(unfit(format!(
                "the server's setting `{setting}` is `{value}`, so that it can lose acknowledged messages; \
                 allowed is `on`"
            )));
        }
    }
    if read(&row, 2)? {
        return Err(
            unfit("the server is in recovery, as a standby is; allowed is a primary")
                .with_retry(RetryAdvice::Temporary),
        );
    }
    let release: i32 = read(&row, 3)?;
    if release < OLDEST {
        return Err(unfit(format!(
            "the server is PostgreSQL {}; allowed is {} or later",
            release / 10_000,
            OLDEST / 10_000
        )));
    }
    Ok(())
}

/// Refuses other tables than those that were opened.
pub(crate) async fn check_identity(client: &Client, schema: &str, store: Uuid) -> Result<()> {
    if identity(client, schema).await? == store {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Replaced, Operation::Open);
    Err(error.with_detail(format!(
        "the tables in the schema `{schema}` are not those that this process has opened"
    )))
}

/// Reads by which the tables are told from all others.
pub(crate) async fn identity(client: &Client, schema: &str) -> Result<Uuid> {
    let find = format!("SELECT identity FROM \"{schema}\".version");
    let row = client.query_one(&find, &[]).await.map_err(opening)?;
    read(&row, 0)
}

pub(crate) fn read<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r Row,
    at: usize,
) -> Result<T> {
    row.try_get(at).map_err(opening)
}

pub(crate) fn opening(error: tokio_postgres::Error) -> Error {
    Failure::from(error)
        .not_done()
        .into_error(Operation::Open, None)
}

pub(crate) fn unfit(detail: impl Into<String>) -> Error {
    let error = Error::new(ErrorKind::Storage, Operation::Open);
    error.with_retry(RetryAdvice::Permanent).with_detail(detail)
}
