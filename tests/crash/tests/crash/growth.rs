//! What must not grow with the number of messages, or with time: the log of the file, the pages that a receive
//! reads, the memory of a process, its descriptors, threads and tasks. Judged by counts, and never by time.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use queue_core::backend::Backend;
use queue_crash::messages::CrashOrder;
use queue_crash::plan;
use queue_crash::process::{GUARD, Process};
use queue_crash::usage::Usage;
use queue_crash::worker::{Arguments, Role};
use queue_runtime::QueueService;
use queue_runtime::backend::{SqliteBackend, Synchronous};
use queue_runtime::clock::SystemClock;
use queue_tests::incompressible;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const FILE: &str = "queues.db";
const MIB: u64 = 1024 * 1024;

async fn open(folder: &Path) -> Arc<dyn Backend> {
    let clock = Arc::new(SystemClock::new());
    // Durability is not tested here.
    let builder = SqliteBackend::builder(folder.join(FILE), clock).synchronous(Synchronous::Normal);
    Arc::new(builder.open().await.expect("opens"))
}

async fn connect(folder: &Path) -> QueueService {
    let service = QueueService::with_backend(open(folder).await)
        .connect()
        .await;
    service.expect("connects")
}

/// Fills a file with orders of this size.
fn fill(folder: &Path, orders: usize, size: usize) {
    Runtime::new().expect("a runtime").block_on(async {
        let service = connect(folder).await;
        let padding = "x".repeat(size);
        for numbers in (0..orders).collect::<Vec<_>>().chunks(1000) {
            let order = |number: &usize| CrashOrder {
                name: format!("{number}-p"),
                padding: padding.clone(),
            };
            let submitted = service.submit_all(numbers.iter().map(order)).await;
            submitted.expect("submitted");
        }
    });
}

fn start(folder: &Path, role: Role, seed: u64) -> (Process, Receiver<(u64, String)>) {
    let (sender, lines) = channel();
    let arguments = Arguments {
        role,
        file: folder.join(FILE),
        ledger: folder.join("0.ledger"),
        number: 0,
        seed,
        bug: None,
        environment: Vec::new(),
    };
    let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
    (Process::start(program, &arguments, sender), lines)
}

fn usages(lines: &Receiver<(u64, String)>) -> Vec<Usage> {
    let lines = lines.try_iter();
    lines.filter_map(|(_, line)| Usage::parse(&line)).collect()
}

/// Reads all the time: one transaction begins before the other ends, so that SQLite itself never finds a moment to
/// start the log anew. Each is short.
fn read_without_a_gap(file: &Path, stop: &AtomicBool) {
    const READS: usize = 50;

    let open = || Connection::open(file).expect("it opens");
    let (mut one, mut other) = (open(), open());
    let run = |connection: &Connection, sql| connection.execute_batch(sql).expect("it can be read");
    let read = |connection: &Connection| {
        let count = "SELECT count(*) FROM queue_queues";
        let count = connection.query_row(count, [], |row| row.get::<_, i64>(0));
        count.expect("it can be read");
    };
    run(&one, "BEGIN");
    read(&one);
    while !stop.load(SeqCst) {
        run(&other, "BEGIN");
        read(&other);
        run(&one, "COMMIT");
        (0..READS).for_each(|_| read(&other));
        std::mem::swap(&mut one, &mut other);
    }
}

#[test]
fn the_log_stays_short_while_many_large_messages_are_put() {
    /// Almost as large as the default limits allow.
    const SIZE: usize = 45 * 1024;
    /// More than the writer allows before it starts the log anew.
    const SAVED: u64 = 24 * MIB;

    let messages = plan::times(2400);
    let folder = TempDir::new().expect("a folder");
    let log = folder.path().join(format!("{FILE}-wal"));
    let longest = Runtime::new().expect("a runtime").block_on(async {
        let producer = connect(folder.path()).await;
        let queue = producer.queue::<CrashOrder>().any();
        queue.create().await.expect("created");
        let (left, stop) = (
            Arc::new(AtomicUsize::new(messages)),
            Arc::new(AtomicBool::new(false)),
        );
        let reader = {
            let (file, stop) = (folder.path().join(FILE), Arc::clone(&stop));
            std::thread::spawn(move || read_without_a_gap(&file, &stop))
        };
        let mut producers = JoinSet::new();
        for _ in 0..8 {
            let (producer, left, log) = (producer.clone(), Arc::clone(&left), log.clone());
            producers.spawn(async move {
                let mut longest = 0;
                let take = || left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
                while take().is_ok() {
                    let (name, padding) = ("large-p".to_owned(), "x".repeat(SIZE));
                    let submitted = producer.submit(CrashOrder { name, padding }).await;
                    submitted.expect("submitted");
                    longest = longest.max(fs::metadata(&log).expect("a log").len());
                }
                longest
            });
        }
        let longest = producers.join_all().await.into_iter().max();
        stop.store(true, SeqCst);
        reader.join().expect("it read to the end");
        longest.expect("several producers")
    });
    let total = (messages * SIZE) as u64;
    println!(
        "{messages} messages, {} MiB: the log had up to {} MiB",
        total / MIB,
        longest / MIB
    );
    assert!(total > 4 * SAVED, "too little to tell");
    // That it was started anew. No fixed length holds on every machine: the log grows on if the reader is not scheduled
    // at that moment.
    assert!(
        longest < total - SAVED,
        "the log has {longest} bytes after {total}"
    );
}

/// Returns how many bytes a process reads to receive and complete orders one by one, with a backlog.
fn read_with_a_backlog(orders: usize) -> u64 {
    const DRAINED: u32 = 100;

    let folder = TempDir::new().expect("a folder");
    fill(folder.path(), orders, 0);
    // Nobody empties the log under a reader: the process would read it for that as often as it is slow.
    let reader = Connection::open(folder.path().join(FILE)).expect("opens");
    let reading = reader.unchecked_transaction().expect("begins");
    let count = "SELECT count(*) FROM queue_messages";
    let found: i64 = reading
        .query_row(count, [], |row| row.get(0))
        .expect("counted");
    assert_eq!(found, orders as i64);
    let (process, lines) = start(folder.path(), Role::Drain(DRAINED), 0);
    let (status, complaints) = process.wait();
    drop(reading);
    assert!(
        status.success() && complaints.is_empty(),
        "{status}: {complaints}"
    );
    let usages = usages(&lines);
    let [before, after] = usages[..] else {
        panic!("{usages:?}")
    };
    let read = after.read - before.read;
    println!("{orders} orders: {read} bytes read to complete {DRAINED} of them");
    read
}

#[test]
fn a_receive_reads_no_more_with_a_large_backlog() {
    let (small, large) = (
        read_with_a_backlog(1000),
        read_with_a_backlog(plan::times(100_000)),
    );
    // A tree of a hundred times as many rows has a level more.
    assert!(large < 2 * small, "{small} bytes, then {large}");
}

/// Returns the most memory, in KiB, of a process whose listeners have completed some orders of a backlog.
fn peak_with_a_backlog(orders: usize) -> u64 {
    const LINES: usize = 300;

    let folder = TempDir::new().expect("a folder");
    fill(folder.path(), orders, 24 * 1024);
    let (process, lines) = start(folder.path(), Role::Listen, 0);
    for _ in 0..LINES {
        lines.recv_timeout(GUARD).expect("it works");
    }
    let (status, complaints) = process.finish();
    assert!(
        status.success() && complaints.is_empty(),
        "{status}: {complaints}"
    );
    let usage = usages(&lines).pop().expect("it reports what it has used");
    println!("{orders} large orders: {} KiB at most", usage.peak);
    usage.peak
}

#[test]
fn a_consumer_needs_no_more_memory_for_more_messages() {
    let (small, large) = (
        peak_with_a_backlog(200),
        peak_with_a_backlog(plan::times(2000)),
    );
    // All of them have 46 MiB.
    let more = large.saturating_sub(small);
    assert!(more < 12 * 1024, "{small} KiB, then {large}");
}

#[test]
fn large_payloads_take_no_more_memory_than_they_may() {
    const SIZE: usize = 5 * MIB as usize;

    let orders = plan::times(60);
    let folder = TempDir::new().expect("a folder");
    Runtime::new().expect("a runtime").block_on(async {
        let service = connect(folder.path()).await;
        let padding = incompressible(SIZE);
        for number in 0..orders {
            let order = CrashOrder {
                name: format!("{number}-p"),
                // None shares a beginning with another one.
                padding: format!("{}{}", &padding[number..], number),
            };
            service.submit(order).await.expect("submitted");
        }
    });
    let (process, lines) = start(folder.path(), Role::Bulk, 0);
    let (status, complaints) = process.wait();
    assert!(
        status.success() && complaints.is_empty(),
        "{status}: {complaints}"
    );
    let usage = usages(&lines).pop().expect("it reports what it has used");
    println!(
        "{orders} orders of 5 MiB, 64 MiB in flight: {} KiB at most",
        usage.peak
    );
    assert!(usage.peak < 200 * 1024, "{} KiB", usage.peak);
}

#[test]
fn a_long_soak_under_faults_leaves_nothing_behind() {
    let rounds = plan::times(24) as u64;
    let seed = plan::seed();
    let folder = TempDir::new().expect("a folder");
    let role = Role::Soak(u32::try_from(rounds).expect("a number of rounds"));
    let (process, lines) = start(folder.path(), role, seed);
    let mut found = Vec::new();
    // Its panics are intended, and go to its standard error.
    let hang = GUARD.max(Duration::from_secs(20 * rounds));
    while found.len() < 2 {
        let line = lines.recv_timeout(hang);
        found.extend(Usage::parse(&line.expect("it works").1));
    }
    let (status, complaints) = process.wait();
    assert!(status.success(), "{status}: {complaints}");
    let [warm, end] = found[..] else {
        panic!("{found:?}")
    };
    println!("after {} of {rounds} rounds: {warm}", rounds.div_ceil(4));
    println!("after all: {end}");
    // One for every fourth round is more than chance, and less than any leak.
    let more = (rounds - rounds.div_ceil(4)) / 4;
    for (what, warm, end) in [
        ("descriptors", warm.descriptors, end.descriptors),
        ("threads", warm.threads, end.threads),
        ("tasks", warm.tasks, end.tasks),
    ] {
        assert!(end <= warm + more, "{what}: {warm}, then {end}");
    }
    let allowed = 4 * 1024 + 24 * rounds;
    assert!(end.memory <= warm.memory + allowed, "{warm}, then {end}");
}
