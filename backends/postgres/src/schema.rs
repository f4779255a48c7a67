//! The tables.

use std::time::Duration;

use queue_core::backend::MAX_GROUP;
use queue_core::store_clock::BEHIND;
use queue_core::{Error, Result, RetryAdvice};
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::attachments::PART;
use crate::fitness::{opening, read, unfit};
use crate::messages::{IN_TURNS, PUT_ALL};
use crate::records::LOCK_OF_RECORD;

/// The version of the tables, and the oldest version of a program's own tables with which it can use these.
const VERSION: i32 = 4;
const READABLE_SINCE: i32 = 2;

/// What takes tables from a version to the next one, besides the functions, which are replaced.
const MIGRATIONS: &[(i32, &str)] = &[
    (
        2,
        "ALTER TABLE version ADD COLUMN readable_since integer NOT NULL DEFAULT 2",
    ),
    (
        3,
        "ALTER TABLE messages ADD COLUMN IF NOT EXISTS received_at bigint, ADD COLUMN IF NOT EXISTS client text COLLATE \"C\"",
    ),
];

/// How long opening waits for another process that creates or migrates the tables.
const LOCK_TIMEOUT: &str = "30s";

/// How long a migration waits for each lock, for which others wait meanwhile, less long than the statements of the engine
/// do; and how often it tries, for half a minute.
const SHORT_LOCK_TIMEOUT: &str = "200ms";
const MIGRATION_TRIES: u32 = 60;
const MIGRATION_PAUSE: Duration = Duration::from_millis(300);

/// The tables, in the schema that is set.
const TABLES: &str = include_str!("tables.sql");

/// What a deleted message leaves.
const TRIGGERS: &str = include_str!("triggers.sql");

/// The functions by which messages of groups come to their turns.
const GROUPS: &str = include_str!("groups.sql");

/// The functions for transactions of applications.
const FUNCTIONS: &str = include_str!("functions.sql");

/// Creates the tables unless they are there. Refuses a schema of another version, or of another program, which is left
/// unchanged.
pub(crate) async fn migrate(client: &Client, schema: &str) -> Result<()> {
    // Two processes that open at once wait for each other.
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; \
         SELECT pg_advisory_xact_lock(hashtextextended('queues schema {schema}', 0))"
    );
    client.batch_execute(&begin).await.map_err(opening)?;
    let migrated = match migrate_locked(client, schema).await {
        Ok(()) => go_on_with_fences(client, schema).await,
        refused => refused,
    };
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
        .query_typed(
            "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.version') IS NOT NULL, \
             EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1))",
            &[(&schema, Type::TEXT)],
        )
        .await;
    let found = found.map_err(opening)?;
    let row = found.first().ok_or_else(|| not_ours(schema))?;
    let (exists, has_version, has_tables): (bool, bool, bool) =
        (read(row, 0)?, read(row, 1)?, read(row, 2)?);
    if has_version {
        return use_or_migrate(client, schema).await;
    }
    if has_tables {
        return Err(not_ours(schema));
    }
    if !exists {
        let create = format!("CREATE SCHEMA \"{schema}\"");
        client.batch_execute(&create).await.map_err(opening)?;
    }
    let create = format!("SET LOCAL search_path = \"{schema}\"; {}", tables(schema));
    client.batch_execute(&create).await.map_err(opening)
}

/// Migrates tables of an earlier version. Those of a later one are used as they are, if they can be.
async fn use_or_migrate(client: &Client, schema: &str) -> Result<()> {
    let find = format!(
        "SELECT version, (to_jsonb(own) ->> 'readable_since')::integer FROM \"{schema}\".version own"
    );
    let rows = client.query_typed(&find, &[]).await.map_err(opening)?;
    let row = rows.first().ok_or_else(|| not_ours(schema))?;
    let (version, readable_since): (i32, Option<i32>) = (read(row, 0)?, read(row, 1)?);
    let steps = MIGRATIONS.iter().filter(|(from, _)| *from >= version);
    let steps: Vec<&str> = steps.map(|(_, step)| *step).collect();
    if version == VERSION
        || version > VERSION && readable_since.is_some_and(|since| since <= VERSION)
    {
        return Ok(());
    }
    if version > VERSION || steps.len() != usize::try_from(VERSION - version).unwrap_or(0) {
        return Err(unfit(format!(
            "the tables in the schema `{schema}` have version {version}; this release reads version {VERSION}"
        )));
    }
    let migrate = format!(
        "SAVEPOINT migration; SET LOCAL lock_timeout = '{SHORT_LOCK_TIMEOUT}'; \
         SET LOCAL search_path = \"{schema}\"; {}; {} UPDATE version SET version = {VERSION}, readable_since = {READABLE_SINCE};",
        steps.join(";"),
        filled_in(&functions(), schema),
    );
    for _ in 0..MIGRATION_TRIES {
        let Err(error) = client.batch_execute(&migrate).await else {
            return Ok(());
        };
        match error.code() {
            // An open transaction has used the tables. Others wait meanwhile, and are let through between two tries.
            Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
                let undo = client.batch_execute("ROLLBACK TO migration").await;
                undo.map_err(opening)?;
                sleep(MIGRATION_PAUSE).await;
            }
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                return Err(unfit(format!(
                    "the tables in the schema `{schema}` have version {version}, and this user may not migrate them to \
                     version {VERSION}: open them once as their owner, for example by `queues list`"
                )));
            }
            _ => return Err(opening(error)),
        }
    }
    let problem = format!(
        "the tables in the schema `{schema}` cannot be migrated from version {version} to {VERSION} while a transaction is open that \
         has used them"
    );
    Err(unfit(problem).with_retry(RetryAdvice::Temporary))
}

/// Has the fence numbers go on from the time, after those that were given before these tables took the place of others.
async fn go_on_with_fences(client: &Client, schema: &str) -> Result<()> {
    let go_on = format!(
        "SELECT setval('\"{schema}\".fences', now) FROM \"{schema}\".fences,
            CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) AS now WHERE last_value < now"
    );
    client.batch_execute(&go_on).await.map_err(opening)
}

/// Returns the SQL that creates everything, and gives a role the rights to use it.
pub(crate) fn script(schema: &str, role: Option<&str>) -> String {
    let role = role.map(|role| role.replace('"', "\"\""));
    let grant = role.map(|role| {
        format!(
            "\nGRANT USAGE ON SCHEMA \"{schema}\" TO \"{role}\";\n\
             GRANT ALL ON ALL TABLES IN SCHEMA \"{schema}\" TO \"{role}\";\n\
             GRANT ALL ON ALL SEQUENCES IN SCHEMA \"{schema}\" TO \"{role}\";"
        )
    });
    format!(
        "BEGIN;\nCREATE SCHEMA \"{schema}\";\nSET LOCAL search_path = \"{schema}\";\n{}{}\nCOMMIT;\n",
        tables(schema),
        grant.unwrap_or_default(),
    )
}

/// Returns the statements that create everything, in the schema that is set.
fn tables(schema: &str) -> String {
    let version = format!("INSERT INTO version VALUES ({VERSION});");
    filled_in(&format!("{TABLES}\n{}\n{version}", functions()), schema)
}

/// Returns the statements that create or replace the functions and triggers, in the schema that is set.
fn functions() -> String {
    let put_all = format!(
        "CREATE OR REPLACE FUNCTION put_all(bigint, text[], bytea[], bigint[], bigint[], text[], text[]) RETURNS TABLE (
            now bigint, is_put boolean, seq bigint, nonce uuid, visible_at bigint, expires_at bigint
        ) LANGUAGE sql AS $put_all${PUT_ALL}$put_all$;"
    );
    format!("{TRIGGERS}\n{GROUPS}\n{put_all}\n{FUNCTIONS}")
}

fn filled_in(sql: &str, schema: &str) -> String {
    sql.replace("{lock_of_record}", LOCK_OF_RECORD)
        .replace("{part}", &PART.to_string())
        .replace("{schema}", schema)
        .replace("{readable_since}", &READABLE_SINCE.to_string())
        .replace("{in_turns}", &IN_TURNS.to_string())
        .replace("{behind}", &BEHIND.to_string())
        .replace("{longest_group}", &MAX_GROUP.to_string())
}

fn not_ours(schema: &str) -> Error {
    unfit(format!(
        "the schema `{schema}` holds tables of another program; choose another with `?schema=NAME`"
    ))
}
