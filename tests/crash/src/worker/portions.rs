use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use queue_core::Timestamp;
use queue_core::clock::{BootTime, BoxFuture, Clock};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::{Message, QueueService, Received};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use super::Arguments;
use crate::sabotage::Bug;

/// A job of [`PORTIONS`] portions.
#[derive(Debug, Serialize, Deserialize, Message)]
#[message(
    kind = "crash.job",
    queue = "jobs",
    visibility_timeout = "1h",
    poison_threshold = 100_000
)]
pub struct Job {}

/// The portions of a job.
pub const PORTIONS: u64 = 100;

/// The value of a portion; a job's result is the sum of values.
#[must_use]
pub fn value(portion: u64) -> u64 {
    portion * portion + 1
}

/// How far a job has got.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    portions: u64,
    sum: u64,
}

/// Works on the job in the file, if there is one, and kills itself after a portion: before or after it is recorded. Logs
/// each portion in `ledger`, and the result once the job is complete.
pub(super) async fn run(arguments: &Arguments) {
    let clock = Arc::new(Later {
        clock: SystemClock::new(),
        by: Duration::from_secs(2 * 60 * 60).saturating_mul(arguments.number as u32),
    });
    let backend = SqliteBackend::builder(&arguments.file, clock.clone()).open();
    let backend = backend.await.expect("the file opens");
    let service = QueueService::with_backend(Arc::new(backend))
        .clock(clock)
        .connect();
    let service = service.await.expect("connecting opens nothing");
    let job = service.accept::<Job>().await.expect("the storage works");
    let Some(job) = job else { return };
    let mut random = SmallRng::seed_from_u64(arguments.seed ^ arguments.number);
    let sum = work(arguments, &job, random.random_bool(0.5)).await;
    job.complete().await.expect("the storage works");
    note(arguments, &format!("sum {sum}"));
}

/// Does the portions that are left.
async fn work(arguments: &Arguments, job: &Received<Job>, is_killed_early: bool) -> u64 {
    let mut done: Done = job.progress().expect("readable").unwrap_or_default();
    while done.portions < PORTIONS {
        note(arguments, &format!("portion {}", done.portions));
        done.sum += value(done.portions);
        done.portions += 1;
        if is_killed_early && is_first(arguments, done.portions) {
            kill();
        }
        if arguments.bug != Some(Bug::SkipsCheckpoints) {
            let written = job.checkpoint(&done).await;
            written.expect("the storage works, and the lease is long");
        }
        if is_first(arguments, done.portions) {
            kill();
        }
    }
    done.sum
}

/// Whether no process was killed after this portion.
fn is_first(arguments: &Arguments, portions: u64) -> bool {
    let killed = arguments.file.with_file_name(format!("{portions}.killed"));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(killed)
        .is_ok()
}

fn kill() {
    kill_process(getpid(), Signal::KILL).expect("it is this process");
}

/// Appends a line to the ledger, not synced: what is written survives a kill.
fn note(arguments: &Arguments, line: &str) {
    let ledger = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&arguments.ledger);
    let line = format!("{line}\n");
    (ledger.expect("a ledger").write_all(line.as_bytes())).expect("written");
}

/// The system's clock, ahead by so much: for a process that is started after the lease of another has ended.
#[derive(Debug)]
struct Later {
    clock: SystemClock,
    by: Duration,
}

impl Clock for Later {
    fn now(&self) -> Timestamp {
        self.clock.now() + self.by
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn boot(&self) -> Option<BootTime> {
        let BootTime { boot, elapsed } = self.clock.boot()?;
        Some(BootTime {
            boot,
            elapsed: elapsed + self.by,
        })
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}
