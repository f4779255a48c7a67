//! apalis on PostgreSQL, as documented and with its best settings.

use std::sync::Arc;
use std::time::Instant;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage};
use peer_harness::{
    CONNECTIONS, Consume, Durability, Handled, Outcome, Parcel, Rates, Variant, Work, all_done,
    submit_with,
};
use sqlx::postgres::PgPoolOptions;

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    let settings = ["as documented", "batches of 500, without a lock for each"];
    let variants = settings.map(|settings| Variant {
        name: format!("apalis-postgres 1.0, {settings}"),
        durability: Durability::Full,
        consume: Consume::Listen,
        at_most: 10_000,
        missing: None,
    });
    variants.into()
}

async fn run(work: &Work) -> Outcome<Rates> {
    let url = peer_harness::database()?;
    let (pool, config) = match work.variant {
        0 => (PgPool::connect(&url).await?, Config::default()),
        _ => {
            let pool = PgPoolOptions::new().max_connections(CONNECTIONS);
            // A message that was fetched belongs to the worker already. Results are kept: without them, a message is
            // never done.
            let config = Config::default().batch_size(500).lock_tasks(false);
            (pool.connect(&url).await?, config)
        }
    };
    PostgresStorage::setup(&pool).await?;
    let storage = PostgresStorage::new(&pool).with_config(config.queue("parcels"));
    Ok(Rates {
        submit: submit(&storage, work).await?,
        consume: consume(storage, work).await?,
    })
}

async fn submit(storage: &PostgresStorage<Parcel>, work: &Work) -> Outcome<f64> {
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

async fn consume(storage: PostgresStorage<Parcel>, work: &Work) -> Outcome<f64> {
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
    let left = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";
    all_done(
        work.messages,
        sqlx::query_scalar(left).fetch_one(&pool).await?,
    )?;
    Ok(rate)
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
