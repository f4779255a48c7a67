//! effectum, as shipped and with a write-ahead log.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use peer_harness::{
    Consume, Durability, Handled, Outcome, Parcel, Rates, Variant, Work, submit_with,
};
use rusqlite::{Connection, Row};

const JOB: &str = "parcel";
const STOP: Duration = Duration::from_secs(60);

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    ["as documented", "with a write-ahead log"]
        .map(|settings| Variant {
            name: format!("effectum 0.7, {settings}"),
            durability: Durability::Normal,
            consume: Consume::Listen,
            at_most: 50_000,
            missing: None,
        })
        .into()
}

async fn run(work: &Work) -> Outcome<Rates> {
    let path = work.dir.join("effectum.db");
    if work.variant == 1 {
        log_ahead(&path)?;
    }
    let queue = Arc::new(Queue::new(&path).await?);
    let rates = Rates {
        submit: submit(&queue, work).await?,
        consume: consume(&queue, work).await?,
    };
    let left = queue.num_active_jobs().await?;
    queue.close(STOP).await?;
    match left.pending + left.running {
        0 => Ok(rates),
        left => Err(format!("{left} of {} jobs are not done", work.messages).into()),
    }
}

/// effectum sets the pragma `journal`, which does not exist. The mode that is set here stays with the file.
fn log_ahead(path: &Path) -> Outcome<()> {
    let connection = Connection::open(path)?;
    let wal = |_: &Row<'_>| Ok(());
    Ok(connection.pragma_update_and_check(None, "journal_mode", "wal", wal)?)
}

async fn submit(queue: &Arc<Queue>, work: &Work) -> Outcome<f64> {
    let queue = Arc::clone(queue);
    submit_with(work.messages, work.tasks, move |number| {
        let queue = Arc::clone(&queue);
        async move {
            let job = Job::builder(JOB).json_payload(&Parcel::new(number))?;
            job.add_to(&queue).await?;
            Ok(())
        }
    })
    .await
}

/// Stops the worker before the end, because jobs are marked as done after their handlers.
async fn consume(queue: &Queue, work: &Work) -> Outcome<f64> {
    let handled = Arc::new(Handled::new(work.messages));
    let job = JobRunner::builder(JOB, handle).build();
    let started = Instant::now();
    let in_flight = u16::try_from(work.tasks)?;
    let worker = Worker::builder(queue, Arc::clone(&handled))
        // With the default, which is the maximum, it fetches after every job.
        .min_concurrency(in_flight.div_ceil(2))
        .max_concurrency(in_flight)
        .jobs([job])
        .build()
        .await?;
    handled.all().await;
    worker.unregister(Some(STOP)).await?;
    handled.rate(work.messages, started)
}

async fn handle(job: RunningJob, handled: Arc<Handled>) -> Result<(), effectum::Error> {
    let _: Parcel = job.json_payload()?;
    handled.one();
    Ok(())
}
