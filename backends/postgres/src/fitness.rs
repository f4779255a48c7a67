//! What a server, and the tables in it, must be like, at each connection.

use queue_core::{Error, ErrorKind, Operation, Result, RetryAdvice};
use tokio_postgres::{Client, Row, SimpleQueryMessage};
use uuid::Uuid;

use crate::failure::Failure;

/// The oldest release with everything that the statements need.
const OLDEST: i32 = 14_00_00;

/// Returns the statement that asks what the server is like and, of a schema that was opened, for the identity of its
/// tables, by which they are told from all others.
pub(crate) fn question(schema: Option<&str>) -> String {
    let identity = schema.map_or("NULL".to_owned(), identity_of);
    format!(
        "SELECT current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery(), \
         current_setting('server_version_num'), {identity}"
    )
}

fn identity_of(schema: &str) -> String {
    format!("(SELECT identity FROM \"{schema}\".version)")
}

/// Refuses a server that could lose what it has acknowledged, that lacks what the statements need, or that has other
/// tables in the schema than those that were opened. The answer to the question is the last row.
pub(crate) fn judge(answer: &[SimpleQueryMessage], opened: Option<(&str, Uuid)>) -> Result<()> {
    let row = answer.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let value = |at| row.and_then(|row| row.get(at)).unwrap_or_default();
    for (at, setting) in ["fsync", "full_page_writes"].into_iter().enumerate() {
        let value = value(at);
        if value != "on" {
            return Err(unfit(format!(
                "the server's setting `{setting}` is `{value}`, so that it can lose acknowledged messages; \
                 allowed is `on`"
            )));
        }
    }
    if value(2) != "f" {
        return Err(
            unfit("the server is in recovery, as a standby is; allowed is a primary")
                .with_retry(RetryAdvice::Temporary),
        );
    }
    let release: i32 = value(3).parse().unwrap_or(0);
    if release < OLDEST {
        return Err(unfit(format!(
            "the server is PostgreSQL {}; allowed is {} or later",
            release / 10_000,
            OLDEST / 10_000
        )));
    }
    match opened {
        Some((schema, store)) if value(4) != store.to_string() => {
            let error = Error::new(ErrorKind::Replaced, Operation::Open);
            Err(error.with_detail(format!(
                "the tables in the schema `{schema}` are not those that this process has opened"
            )))
        }
        _ => Ok(()),
    }
}

/// Reads the identity of the tables.
pub(crate) async fn identity(client: &Client, schema: &str) -> Result<Uuid> {
    let find = format!("SELECT {}", identity_of(schema));
    let found = client.query_typed(&find, &[]).await.map_err(opening)?;
    let row = found
        .first()
        .ok_or_else(|| unfit("the tables have no identity"))?;
    read(row, 0)
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
