//! Workers are killed at any moment, and the mosaic is made all the same.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use queue_runtime::{ErrorKind, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

use crate::support::{GUARD, Worker, job, output, pictures, program};

/// Three processors and a controller, and the broker with them.
const ROLES: [&str; 5] = [
    "processor",
    "processor",
    "processor",
    "controller",
    "broker",
];

/// Leases end soon after a kill; no number of kills makes poison; each slice takes a while, so that
/// the job lasts for many kills, and most kills hit a processor that holds one.
const SETTINGS: [&str; 8] = [
    "--tasks",
    "1",
    "--visibility-timeout",
    "1s",
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

const KILL_EVERY: Duration = Duration::from_millis(300);
const HELD_KILLS: usize = 20;

#[derive(Debug, Default)]
struct Tally {
    kills: usize,
    held: usize,
    recorded: usize,
    remarks: Vec<String>,
}

#[test]
fn workers_are_killed_and_the_mosaic_is_the_same() {
    let seed = match std::env::var("KILL_SEED") {
        Ok(seed) => seed.parse().expect("KILL_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("KILL_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (pictures, place) = (pictures(), TempDir::new().expect("a folder"));
    let expected = undisturbed(pictures.path(), &place.path().join("undisturbed"));

    let data = place.path().join("data");
    fs::create_dir(&data).expect("made");
    let start = |role: &str| Worker::start(role, &data, &SETTINGS);
    let mut workers: Vec<(&str, Worker)> = ROLES.iter().map(|role| (*role, start(role))).collect();
    let (mut tally, mut jobs) = (Tally::default(), 0);
    // A machine so fast or slow that one job sees too few kills gets another job.
    while tally.held < HELD_KILLS && jobs < 3 {
        jobs += 1;
        let out = place.path().join(format!("{jobs}.png"));
        let mut client = submit(pictures.path(), &data, &out);
        let begun = Instant::now();
        while client.try_wait().expect("it is a child of ours").is_none() {
            assert!(begun.elapsed() < GUARD, "the job hangs: {tally:#?}");
            std::thread::sleep(KILL_EVERY);
            let victim = random.random_range(0..workers.len());
            let (role, worker) = workers.swap_remove(victim);
            let log = worker.kill();
            workers.push((role, start(role)));
            tally.add(log);
        }
        let told = client.wait_with_output().expect("it is a child of ours");
        let told = String::from_utf8(told.stdout).expect("text");
        println!(
            "{} kills, {} held, {:.1?}: {told}",
            tally.kills,
            tally.held,
            begun.elapsed()
        );
        assert_eq!(told.matches("made in").count(), 1, "{told} {tally:#?}");
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

    drained(&data);
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
    let records = responses(&data.join("blobs/status"));
    assert_eq!(records, jobs, "responses on record");
}

impl Tally {
    fn add(&mut self, log: crate::support::Log) {
        self.kills += 1;
        self.held += usize::from(log.held > 0);
        self.recorded += log.recorded;
        self.remarks.extend(log.remarks);
    }
}

fn undisturbed(pictures: &Path, place: &Path) -> Vec<u8> {
    fs::create_dir(place).expect("made");
    let out = place.join("out.png");
    let mut arguments = vec!["run".to_owned()];
    arguments.extend(job(pictures, place, &out));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let made = output(&arguments);
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    fs::read(&out).expect("the mosaic")
}

fn submit(pictures: &Path, data: &Path, out: &Path) -> Child {
    let arguments = job(pictures, data, out);
    let mut command = program(&["submit"]);
    command.args(arguments).stdout(Stdio::piped());
    command.spawn().expect("the program runs")
}

/// Waits, with the workers still there, until all queues are empty; poison queues are empty or absent.
fn drained(data: &Path) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let url = format!("sqlite:{}", data.join("queues.db").display());
        let service = QueueService::connect(&url).await.expect("the file opens");
        for queue in QUEUES {
            let mut left = 0;
            for _ in 0..300 {
                left = count(&service, queue).await;
                if left == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(left, 0, "messages left on {queue}");
        }
        for queue in QUEUES {
            let poison = count(&service, &format!("{queue}-poison")).await;
            assert_eq!(poison, 0, "poison of {queue}");
        }
    });
}

async fn count(service: &QueueService, queue: &str) -> u64 {
    match service.queue_at(queue).expect("a name").properties().await {
        Ok(properties) => properties.approximate_count,
        Err(error) if error.kind() == ErrorKind::QueueNotFound => 0,
        Err(error) => panic!("{error}"),
    }
}

fn responses(status: &Path) -> usize {
    let requests = fs::read_dir(status).expect("records");
    let has_response = |entry: std::io::Result<fs::DirEntry>| {
        entry
            .expect("an entry")
            .path()
            .join("response.json")
            .exists()
    };
    requests.map(has_response).filter(|found| *found).count()
}
