//! The tables, and what a server must be like.

use queue_core::{Error, ErrorKind, Operation, Result, RetryAdvice};
use tokio_postgres::{Client, Row};

use crate::failure::Failure;

/// The version of the tables.
const VERSION: i32 = 1;

/// The oldest release with everything that the statements need.
const OLDEST: i32 = 14_00_00;

/// How long opening waits for another process that creates or migrates the tables.
const LOCK_TIMEOUT: &str = "30s";

/// The tables, in the schema that is set.
const TABLES: &str = include_str!("tables.sql");

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

/// Creates the tables unless they are there. Refuses a schema of another version, or of another program, which is left
/// unchanged.
pub(crate) async fn migrate(client: &Client, schema: &str) -> Result<()> {
    // Two processes that open at once wait for each other.
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; \
         SELECT pg_advisory_xact_lock(hashtextextended('queues schema {schema}', 0))"
    );
    client.batch_execute(&begin).await.map_err(opening)?;
    let migrated = migrate_locked(client, schema).await;
    let end = if migrated.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = client.batch_execute(end).await.map_err(opening);
    migrated.and(ended)
}

async fn migrate_locked(client: &Client, schema: &str) -> Result<()> {
    let found = client
        .query_one(
            "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.version') IS NOT NULL, \
             EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1))",
            &[&schema],
        )
        .await;
    let row = found.map_err(opening)?;
    let (exists, has_version, has_tables): (bool, bool, bool) =
        (read(&row, 0)?, read(&row, 1)?, read(&row, 2)?);
    if has_version {
        let find = format!("SELECT version FROM \"{schema}\".version");
        let row = client.query_opt(&find, &[]).await.map_err(opening)?;
        let version: Option<i32> = row.as_ref().map(|row| read(row, 0)).transpose()?;
        return match version {
            Some(VERSION) => Ok(()),
            Some(other) => Err(unfit(format!(
                "the tables in the schema `{schema}` have version {other}; this release reads version {VERSION}"
            ))),
            None => Err(not_ours(schema)),
        };
    }
    if has_tables {
        return Err(not_ours(schema));
    }
    if !exists {
        let create = format!("CREATE SCHEMA \"{schema}\"");
        client.batch_execute(&create).await.map_err(opening)?;
    }
    let create = format!(
        "SET LOCAL search_path = \"{schema}\"; {} INSERT INTO version VALUES ({VERSION})",
        TABLES.replace("{schema}", schema)
    );
    client.batch_execute(&create).await.map_err(opening)
}

fn read<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T> {
    row.try_get(at).map_err(opening)
}

fn not_ours(schema: &str) -> Error {
    unfit(format!(
        "the schema `{schema}` holds tables of another program; choose another with `?schema=NAME`"
    ))
}

fn opening(error: tokio_postgres::Error) -> Error {
    Failure::from(error)
        .not_done()
        .into_error(Operation::Open, None)
}

fn unfit(detail: impl Into<String>) -> Error {
    let error = Error::new(ErrorKind::Storage, Operation::Open);
    error.with_retry(RetryAdvice::Permanent).with_detail(detail)
}
