//! Workers are killed at random moments, and the mosaic is complete and unchanged.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use mosaic::storage::records::Records;
use mosaic::storage::store::Store;
use queue_runtime::{ErrorKind, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::support::{GUARD, Location, Worker, job, output};

const ROLES: [&str; 5] = [
    "processor",
    "processor",
    "processor",
    "controller",
    "broker",
];

/// A threshold that kills do not reach, and a pace at which the job lasts for many kills, most of which
/// hit a processor with a slice in flight.
const SETTINGS: [&str; 6] = [
    "--tasks",
    "1",
    "--poison-threshold",
    "1000",
    "--pace",
    "800ms",
];

const QUEUES: [&str; 4] = [
    "imagerequest",
    "slicerequest",
    "sliceresponse",
    "imageresponse",
];

/// The number of kills that must hit a worker with a message in flight.
const HELD_KILLS: usize = 20;

/// One kill in so many hits any worker, whether or not it has a message in flight.
const ANY: usize = 4;

/// How many kills may be ahead of the messages that were handled: without a limit, a machine on which a message takes longer
/// than the time between two kills handles none.
const AHEAD: usize = 5;

/// The most jobs until enough kills have hit a worker with a message in flight.
const JOBS: usize = 10;

/// The queues, blobs and timing of a test.
pub(crate) struct Deployment {
    pub(crate) location: Location,
    /// The URL of the queues.
    pub(crate) queues: String,
    /// Short, so that leases expire soon after a kill.
    pub(crate) visibility_timeout: &'static str,
    pub(crate) kill_every: Duration,
}

#[derive(Debug, Default)]
struct Tally {
    kills: usize,
    held: usize,
    handled: usize,
    recorded: usize,
    remarks: Vec<String>,
}

/// Kills workers at random, until enough kills have hit one with a message in flight, and lets the others
/// complete the mosaic. Then checks the queues and the records.
pub(crate) fn workers(
    deployment: &Deployment,
    pictures: &Path,
    scratch: &Path,
    store: impl AsyncFnOnce() -> Store,
) {
    let seed = match std::env::var("KILL_SEED") {
        Ok(seed) => seed.parse().expect("KILL_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("KILL_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let expected = undisturbed(pictures, &scratch.join("undisturbed"));

    let mut settings = SETTINGS.to_vec();
    settings.extend(["--visibility-timeout", deployment.visibility_timeout]);
    let start = |role: &str| Worker::start(role, &deployment.location, &settings);
    let mut workers: Vec<(&str, Worker)> = ROLES.iter().map(|role| (*role, start(role))).collect();
    let (mut tally, mut jobs) = (Tally::default(), 0);
    while tally.held < HELD_KILLS && jobs < JOBS {
        jobs += 1;
        let out = scratch.join(format!("{jobs}.png"));
        let mut client = Client::submit(pictures, &deployment.location, &out);
        let begun = Instant::now();
        while tally.held < HELD_KILLS && !client.has_ended() {
            assert!(begun.elapsed() < GUARD, "the job hangs: {tally:#?}");
            // Gives the workers time to begin anew. The test ends by the number of kills, not by time.
            std::thread::sleep(deployment.kill_every);
            let at_work: usize = workers.iter().map(|(_, worker)| worker.handled()).sum();
            if tally.kills > tally.handled + at_work + AHEAD {
                continue;
            }
            let mut candidates: Vec<_> = (0..workers.len()).collect();
            if tally.kills % ANY != 0 {
                candidates.retain(|at| workers[*at].1.holds());
            }
            if candidates.is_empty() {
                continue;
            }
            let victim = candidates[random.random_range(0..candidates.len())];
            let (role, worker) = workers.swap_remove(victim);
            let log = worker.kill();
            workers.push((role, start(role)));
            tally.add(log);
        }
        let stdout = client.output();
        println!(
            "{} kills, {} held, {:.1?}: {stdout}",
            tally.kills,
            tally.held,
            begun.elapsed()
        );
        assert_eq!(stdout.matches("made in").count(), 1, "{stdout} {tally:#?}");
        assert!(
            fs::read(&out).expect("the mosaic") == expected,
            "another mosaic"
        );
    }
    assert!(
        tally.held >= HELD_KILLS,
        "only {} kills hit a worker that held a message",
        tally.held
    );

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(drained(&deployment.queues));
    for (_, worker) in workers {
        let log = worker.kill();
        tally.add(log);
    }
    assert!(
        tally.recorded <= jobs,
        "{} responses to {jobs} requests",
        tally.recorded
    );
    println!("{:#?}", tally.remarks);
    let records = runtime.block_on(async { responses(store().await).await });
    assert_eq!(records, jobs, "responses on record");
}

impl Tally {
    fn add(&mut self, log: super::support::Log) {
        self.kills += 1;
        self.held += usize::from(log.held > 0);
        self.handled += log.handled;
        self.recorded += log.recorded;
        self.remarks.extend(log.remarks);
    }
}

/// The mosaic of one process on SQLite and a folder, without kills.
pub(crate) fn undisturbed(pictures: &Path, data: &Path) -> Vec<u8> {
    fs::create_dir(data).expect("made");
    let out = data.join("out.png");
    let made = output(&mut job("run", pictures, &Location::folder(data), &out));
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    fs::read(&out).expect("the mosaic")
}

/// The process of a job's client. It is killed when this is dropped.
pub(crate) struct Client(Option<Child>);

impl Client {
    pub(crate) fn submit(pictures: &Path, location: &Location, out: &Path) -> Self {
        let mut command = job("submit", pictures, location, out);
        let timeout = format!("{}s", GUARD.as_secs());
        command.args(["--timeout", &timeout]).stdout(Stdio::piped());
        Self(Some(command.spawn().expect("the program runs")))
    }

    fn has_ended(&mut self) -> bool {
        let child = self.0.as_mut().expect("its output was not taken");
        child.try_wait().expect("it is a child of ours").is_some()
    }

    /// Waits until it has ended, which it does by its timeout. Returns its output.
    pub(crate) fn output(mut self) -> String {
        let child = self.0.take().expect("its output was not taken");
        let output = child.wait_with_output().expect("it is a child of ours");
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Both fail only if it has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until the workers have emptied all queues, and checks that there is no poison message.
async fn drained(url: &str) {
    let service = QueueService::connect(url).await.expect("it is there");
    for queue in QUEUES {
        let mut left = 0;
        let begun = Instant::now();
        while begun.elapsed() < GUARD {
            left = count(&service, queue).await;
            if left == 0 {
                break;
            }
            // Nothing announces that a queue is empty.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(left, 0, "messages left on {queue}");
    }
    for queue in QUEUES {
        let poison = count(&service, &format!("{queue}-poison")).await;
        assert_eq!(poison, 0, "poison of {queue}");
    }
}

async fn count(service: &QueueService, queue: &str) -> usize {
    match service.any_queue(queue).expect("a name").properties().await {
        Ok(properties) => properties.approximate_count,
        Err(error) if error.kind() == ErrorKind::QueueNotFound => 0,
        Err(error) => panic!("{error}"),
    }
}

async fn responses(store: Store) -> usize {
    let states = Records::new(store).states().await.expect("records");
    let answered = states.iter().filter(|state| state.outcome.is_some());
    answered.count()
}
