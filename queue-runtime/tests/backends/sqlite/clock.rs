//! One store time for all processes of a machine, whatever their wall clocks say.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
use queue_core::clock::BoxFuture;
use queue_core::{BootTime, Clock, QueueName, Timestamp};
use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::SystemClock;
use tempfile::TempDir;

use crate::sqlite::place::{self, Place};
use crate::threads;

/// Longer than the test takes, and shorter than the steps of the clock.
const LEASE: Duration = Duration::from_secs(1800);

const HOUR: i64 = 3600;
const TEN_YEARS: i64 = 10 * 365 * 24 * HOUR;

const FILE: &str = "QUEUE_TEST_FILE";
const AHEAD: &str = "QUEUE_TEST_SECONDS_AHEAD";

/// The system's clock, with a wall clock that is ahead.
#[derive(Debug)]
struct Ahead(SystemClock, i64);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.0.now() + SignedDuration::from_secs(self.1)
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn boot(&self) -> Option<BootTime> {
        self.0.boot()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

fn orders() -> QueueName {
    "orders".parse().expect("a name")
}

async fn open(path: &Path, ahead: i64) -> SqliteBackend {
    let clock = Arc::new(Ahead(SystemClock::new(), ahead));
    let backend = SqliteBackend::open(path, clock).await.expect("open");
    let created = backend.create_queue(&orders(), &Metadata::new()).await;
    created.expect("create");
    backend
}

/// Puts a message, receives all that are visible, and returns the store time of the put. Fails if the
/// message that the test holds is received.
async fn look(backend: &SqliteBackend) -> Timestamp {
    let put = backend.put(&orders(), NewMessage::new("visible")).await;
    let received = backend.receive(&orders(), 256, LEASE).await;
    for message in received.expect("receive") {
        assert_eq!(message.body, "visible", "its lease has not ended");
    }
    put.expect("put").inserted_at
}

#[test]
#[ignore = "a process that the other test starts"]
fn process() {
    let path = std::env::var(FILE).expect("the other test starts this one");
    let ahead = std::env::var(AHEAD).expect("set");
    threads::block_on(async {
        let backend = open(path.as_ref(), ahead.parse().expect("seconds")).await;
        println!("store time: {}", look(&backend).await);
        backend.close().await;
    });
}

fn run(mut program: Command, path: &Path, ahead: i64) -> Timestamp {
    program.args([
        "--ignored",
        "--exact",
        "sqlite::clock::process",
        "--nocapture",
    ]);
    program.env(FILE, path).env(AHEAD, ahead.to_string());
    let output = program.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let found = said
        .lines()
        .find_map(|line| line.strip_prefix("store time: "));
    let found = found.unwrap_or_else(|| panic!("{ahead} s ahead: {output:?}"));
    found.parse().expect("a time")
}

#[cfg(target_os = "linux")]
#[test]
fn processes_of_a_machine_share_one_store_time() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("queue.db");
    let this = || Command::new(std::env::current_exe().expect("a program"));
    let in_another_time_namespace = || {
        let mut unshare = queue_tests::in_namespaces(&["--time", "--boottime", "864000", "--"])?;
        unshare.arg(std::env::current_exe().expect("a program"));
        Some(unshare)
    };

    threads::block_on(async {
        // The wall clock of the process that creates the file is wrong, too.
        let holder = open(&path, HOUR).await;
        let put = holder.put(&orders(), NewMessage::new("held")).await;
        put.expect("put");
        let held = holder.receive(&orders(), 1, LEASE).await;
        assert_eq!(held.expect("receive").len(), 1);
        // A process that opened the file before the others, and only polls.
        let poller = open(&path, 2 * HOUR).await;
        for ahead in [0, HOUR, -HOUR, 3 * HOUR, TEN_YEARS, -TEN_YEARS] {
            let before = look(&holder).await;
            let elsewhere = run(this(), &path, ahead);
            let after = look(&poller).await;
            assert!(before <= elsewhere && elsewhere <= after, "{ahead} s ahead");
            if let Some(program) = in_another_time_namespace() {
                let elsewhere = run(program, &path, ahead);
                let last = look(&holder).await;
                assert!(after <= elsewhere && elsewhere <= last, "{ahead} s ahead");
            }
        }
        // Nobody has the file open meanwhile.
        let before = look(&holder).await;
        holder.close().await;
        poller.close().await;
        let elsewhere = run(this(), &path, -HOUR);
        let again = open(&path, TEN_YEARS).await;
        let after = look(&again).await;
        assert!(before <= elsewhere && elsewhere <= after);
    });
}

#[test]
fn a_new_boot_neither_ends_nor_prolongs_leases_for_long() {
    for hours in [-1, 1] {
        threads::block_on(async {
            let place = Place::new();
            // The wall clock was ahead when the file was created.
            place.clock.step_wall_clock(SignedDuration::from_hours(1));
            let backend = place.orders().await;
            backend
                .put(&place.queue, NewMessage::new("one"))
                .await
                .expect("put");
            backend.close().await;
            place.clock.reboot();
            place
                .clock
                .step_wall_clock(SignedDuration::from_hours(hours - 1));
            for _ in 0..3 {
                let backend = place.orders().await;
                let received = backend.receive(&place.queue, 1, place::LEASE).await;
                assert_eq!(received.expect("receive").len(), 1);
                place.clock.advance(place::LEASE - Duration::from_millis(1));
                let received = backend.receive(&place.queue, 1, place::LEASE).await;
                assert_eq!(received.expect("receive"), []);
                backend.close().await;
                place.clock.advance(Duration::from_millis(1));
            }
        });
    }
}
