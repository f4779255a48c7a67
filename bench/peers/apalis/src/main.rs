//! apalis on SQLite, as documented and with its best settings.

use std::sync::Arc;
use std::time::Instant;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_sqlite::{Config, SqlitePool, SqliteStorage};
use peer_harness::{
    Consume, Durability, Handled, Outcome, Parcel, Rates, Variant, Work, submit_with,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    let variant = |settings, durability| Variant {
        name: format!("apalis-sqlite 1.0, {settings}"),
        durability,
        consume: Consume::Listen,
        at_most: 4_000,
        missing: None,
    };
    vec![
        variant("as documented", Durability::Normal),
        variant("FULL, one connection, batches of 500", Durability::Full),
    ]
}

async fn run(work: &Work) -> Outcome<Rates> {
    let options = SqliteConnectOptions::new()
        .filename(work.dir.join("apalis.db"))
        .create_if_missing(true);
    let (pool, config) = match work.variant {
        // `setup` sets `synchronous=OFF` on one connection of the pool; the others keep the default, FULL.
        0 => {
            let pool = SqlitePool::connect_with(options).await?;
            SqliteStorage::setup(&pool).await?;
            (pool, Config::default())
        }
        _ => {
            let options = options
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full);
            let pool = SqlitePoolOptions::new().max_connections(1);
            let pool = pool.connect_with(options).await?;
            SqliteStorage::migrations().run(&pool).await?;
            (pool, Config::default().batch_size(500))
        }
    };
    let storage = SqliteStorage::new(&pool).with_config(config.queue("parcels"));
    Ok(Rates {
        submit: submit(&storage, work).await?,
        consume: consume(storage, work).await?,
    })
}

async fn submit(storage: &SqliteStorage<Parcel>, work: &Work) -> Outcome<f64> {
    let storage = storage.clone();
    submit_with(work.messages, work.tasks, move |number| {
        let mut storage = storage.clone();
        async move {
            storage.push(Parcel::new(number)).await?;
            Ok(())
        }
    })
    .await
}

async fn consume(storage: SqliteStorage<Parcel>, work: &Work) -> Outcome<f64> {
    let pool = storage.pool().clone();
    let handled = Arc::new(Handled::new(work.messages));
    let started = Instant::now();
    WorkerBuilder::new("bench")
        .backend(storage)
        .data(Arc::clone(&handled))
        .concurrency(work.tasks as usize)
        .build(handle)
        .run()
        .await?;
    let rate = handled.rate(work.messages, started)?;
    let done = "SELECT count(*) FROM Jobs WHERE status = 'Done'";
    let done: i64 = sqlx::query_scalar(done).fetch_one(&pool).await?;
    if done == i64::from(work.messages) {
        Ok(rate)
    } else {
        Err(format!("{done} of {} jobs are done", work.messages).into())
    }
}

async fn handle(
    _: Parcel,
    handled: Data<Arc<Handled>>,
    worker: WorkerContext,
) -> Result<(), BoxDynError> {
    if handled.one() {
        worker.stop()?;
    }
    Ok(())
}
