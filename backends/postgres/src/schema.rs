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

/// All times are microseconds since the Unix epoch, on the server's clock. The id of a queue is never given again, not
/// even to the same name: [`clear`](queue_core::backend::Backend::clear) gives a queue another id, and its messages,
/// then no queue's, are removed later.
const TABLES: &str = "
CREATE TABLE version (version integer NOT NULL);
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
CREATE FUNCTION channel(queue text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 'queue_' || md5('{schema}/' || queue) $$;
CREATE SEQUENCE queue_ids;
CREATE TABLE queues (
    name text COLLATE \"C\" PRIMARY KEY,
    id bigint NOT NULL DEFAULT nextval('queue_ids'),
    metadata text[] NOT NULL
);
CREATE TABLE dropped (queue bigint PRIMARY KEY, at bigint NOT NULL);
CREATE SEQUENCE message_ids;
CREATE TABLE messages (
    seq bigint PRIMARY KEY,
    queue bigint NOT NULL,
    visible_at bigint NOT NULL,
    nonce uuid NOT NULL,
    dequeue_count integer NOT NULL DEFAULT 0,
    inserted_at bigint NOT NULL,
    expires_at bigint,
    deleted_items bytea,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX messages_schedule ON messages (queue, visible_at, seq);
CREATE TABLE records (
    scope bytea NOT NULL,
    key bytea NOT NULL,
    owner bigint NOT NULL,
    ends_at bigint NOT NULL,
    value bytea,
    message bigint,
    PRIMARY KEY (scope, key)
);
ALTER TABLE records ALTER COLUMN value SET STORAGE EXTERNAL;
CREATE INDEX records_ends ON records (ends_at);
";

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
