//! PostgreSQL: ours, and a bare connection that sends as many messages in each statement.

use std::time::Instant;

use queue_instructions::Parcel;
use queue_runtime::postgres::tokio_postgres::{Client, NoTls, connect};
use queue_tests::postgres::PostgresServer;

use crate::raw::Bare;
use crate::report::{Figures, Table, in_turn};
use crate::sqlite::{ours_on, without_listener};
use crate::{Options, Outcome, runtime};

/// The numbers of tasks, which are the messages of a bare statement, and of messages.
const SIZES: [(u32, u32); 3] = [(1, 5_000), (32, 100_000), (256, 100_000)];

const OURS: &str = "ours";
const SAME_BYTES: &str = "bare connection, same bytes";

const TABLE: &str = "
    CREATE TABLE message (
        seq bigserial PRIMARY KEY, queue integer NOT NULL, visible_at bigint NOT NULL,
        dequeue_count integer NOT NULL, body bytea NOT NULL
    );
    ALTER TABLE message ALTER COLUMN body SET STORAGE EXTERNAL;
    CREATE INDEX visible ON message (queue, visible_at, seq)";
const INSERT: &str = "INSERT INTO message (queue, visible_at, dequeue_count, body)
    SELECT 1, 0, 0, body FROM unnest($1::bytea[]) AS body";
/// Hides messages for a time and returns them.
const CLAIM: &str = "UPDATE message SET visible_at = $1, dequeue_count = dequeue_count + 1
    WHERE seq IN (SELECT seq FROM message WHERE queue = 1 AND visible_at <= $2
        ORDER BY visible_at, seq LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING seq, body";
const DELETE: &str = "DELETE FROM message WHERE seq = ANY ($1)";
const NOW: i64 = 1;
const LATER: i64 = 30_000;

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let runtime = runtime()?;
    let title = "PostgreSQL, fsync, synchronous_commit=on";
    let mut table = Table::new("postgres", title, &[OURS, SAME_BYTES]);
    let bare = runtime.block_on(Bare::stored_as_ours())?;
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            eprintln!("PostgreSQL, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for side in in_turn(round, [OURS, SAME_BYTES]) {
                // Each has new tables, which nobody has vacuumed.
                let server = PostgresServer::start()?;
                let (submit, accept, listen) = if side == OURS {
                    runtime.block_on(ours_on(server.url(), messages, tasks))?
                } else {
                    let run = run(server.url(), bare, messages, tasks);
                    without_listener(runtime.block_on(run)?)
                };
                table.add_all(tasks, side, &Figures::rates(submit, accept, listen));
            }
        }
    }
    Ok(vec![table])
}

/// Inserts, then claims and deletes, `batch` messages in each statement, each of which is a commit. Returns both rates, in
/// messages per second.
pub(crate) async fn run(url: &str, bare: Bare, messages: u32, batch: u32) -> Outcome<(f64, f64)> {
    let (client, connection) = connect(url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(TABLE).await?;
    let insert = insert(&client, bare, messages, batch).await?;
    let (claim, delete) = (client.prepare(CLAIM).await?, client.prepare(DELETE).await?);
    let started = Instant::now();
    let mut consumed = 0;
    while consumed < messages {
        let most = i64::from(batch);
        let rows = client.query(&claim, &[&LATER, &NOW, &most]).await?;
        let mut claimed: Vec<i64> = Vec::new();
        for row in rows {
            let parcel: Parcel = serde_json::from_slice(row.get(1))?;
            debug_assert!(parcel.number < messages);
            claimed.push(row.get(0));
        }
        consumed += client.execute(&delete, &[&claimed]).await? as u32;
    }
    Ok((
        insert,
        f64::from(messages) / started.elapsed().as_secs_f64(),
    ))
}

async fn insert(client: &Client, bare: Bare, messages: u32, batch: u32) -> Outcome<f64> {
    let insert = client.prepare(INSERT).await?;
    let started = Instant::now();
    for first in (0..messages).step_by(batch as usize) {
        let numbers = first..messages.min(first + batch);
        let bodies = numbers.map(|number| bare.encode(number));
        let bodies = bodies.collect::<Outcome<Vec<_>>>()?;
        client.execute(&insert, &[&bodies]).await?;
    }
    Ok(f64::from(messages) / started.elapsed().as_secs_f64())
}
