//! graphile_worker on PostgreSQL, as documented and with its best settings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext,
    WorkerOptions,
};
use peer_harness::{
    CONNECTIONS, Consume, Durability, Handled, Outcome, Parcel, Rates, Variant, Work, all_done,
    submit_with,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

/// What its own benchmark waits for messages, and for others that are done.
const DELAY: Duration = Duration::from_millis(5);

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Job(Parcel);

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "parcel";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let handled = context.get_ext::<Arc<Handled>>();
        handled.ok_or("nobody counts the messages")?.one();
        Ok::<(), String>(())
    }
}

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    let settings = [
        // Each task takes one message a second, unless another one is submitted meanwhile.
        ("as documented", 60),
        ("polled each ms", 10_000),
        ("batches of 500", 10_000),
    ];
    let variants = settings.map(|(settings, at_most)| Variant {
        name: format!("graphile_worker 0.14, {settings}"),
        durability: Durability::Full,
        consume: Consume::Listen,
        at_most,
        missing: None,
    });
    variants.into()
}

async fn run(work: &Work) -> Outcome<Rates> {
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS);
    let pool = pool.connect(&peer_harness::database()?).await?;
    let handled = Arc::new(Handled::new(work.messages));
    let options = WorkerOptions::default()
        .pg_pool(pool.clone())
        .concurrency(work.tasks as usize)
        .add_extension(Arc::clone(&handled))
        .define_job::<Job>();
    let options = match work.variant {
        0 => options,
        1 => options.poll_interval(Duration::from_millis(1)),
        _ => options
            .poll_interval(DELAY)
            .complete_job_batch_delay(DELAY)
            .local_queue(LocalQueueConfig::default().with_size(500)),
    };
    let worker = options.init().await?;
    Ok(Rates {
        submit: submit(&worker, work).await?,
        consume: consume(worker, &handled, &pool, work).await?,
    })
}

async fn submit(worker: &Worker, work: &Work) -> Outcome<f64> {
    let utils = worker.create_utils();
    submit_with(work.messages, work.tasks, move |number| {
        let utils = utils.clone();
        async move {
            let job = Job(Parcel::new(number));
            utils.add_job(job, JobSpec::default()).await?;
            Ok(())
        }
    })
    .await
}

/// Stops the worker before the end, because messages are removed after their handlers.
async fn consume(worker: Worker, handled: &Handled, pool: &PgPool, work: &Work) -> Outcome<f64> {
    let started = Instant::now();
    let stop = async {
        handled.all().await;
        worker.request_shutdown();
    };
    tokio::join!(worker.run(), stop).0?;
    let rate = handled.rate(work.messages, started)?;
    let left = sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs");
    all_done(work.messages, left.fetch_one(pool).await?)?;
    Ok(rate)
}
