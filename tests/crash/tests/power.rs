//! The power is lost at random moments, and nothing that was acknowledged is. Writes and syncs fail, and
//! nothing is acknowledged that was not done.
//!
//! A library that is loaded before the program records its writes or makes them fail, so these tests need
//! Linux and a C compiler.

#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, channel};

use queue_crash::plan;
use queue_crash::power::{
    Change, Disk, Durability, Environment, FILE, Fate, Ledgers, Operation, Shim,
    assert_application, builder, contents, contents_of, create_application, parse,
};
use queue_crash::process::Process;
use queue_crash::sabotage::Bug;
use queue_crash::worker::{Arguments, FAILED, Role};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::runtime::Runtime;

static SHIM: LazyLock<Shim> = LazyLock::new(Shim::build);

fn start(
    folder: &Path,
    number: u64,
    role: Role,
    bug: Option<Bug>,
    with: Environment,
) -> (Process, Receiver<(u64, String)>) {
    let arguments = Arguments {
        role,
        file: folder.join(FILE),
        ledger: folder.join(format!("{number}.ledger")),
        number,
        seed: 0,
        bug,
        environment: with,
    };
    let (sender, lines) = channel();
    let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
    (Process::start(program, &arguments, sender), lines)
}

/// Runs producers and a consumer twice, so that the log is reset and the file closed in between. Returns
/// the trace.
fn record(bug: Option<Bug>) -> Vec<Operation> {
    let folder = TempDir::new().expect("a folder");
    let trace = folder.path().with_extension("trace");
    let recording = SHIM.recording(folder.path(), &trace);
    for phase in [0, 10] {
        let roles = [Role::Fill, Role::Fill, Role::Consume];
        let processes: Vec<_> = (phase..)
            .zip(roles)
            .map(|(number, role)| start(folder.path(), number, role, bug, recording.clone()))
            .collect();
        for (process, _lines) in processes {
            let (status, complaints) = process.wait();
            assert!(
                status.success() && complaints.is_empty(),
                "{status}: {complaints}"
            );
        }
    }
    let operations = parse(&std::fs::read(&trace).expect("the trace"));
    std::fs::remove_file(&trace).expect("removed");
    operations
}

/// Builds images at random moments, as many at syncs as anywhere else, and judges each. Returns what is
/// wrong with which.
fn judge(
    trace: &[Operation],
    images: usize,
    durability: Durability,
    random: &mut SmallRng,
) -> Vec<String> {
    let syncs: Vec<_> = (0..trace.len())
        .filter(|at| matches!(trace[*at].change, Change::SyncBegun(_) | Change::Synced(_)))
        .collect();
    let mut moments: Vec<_> = (0..images)
        .map(|number| match number % 2 {
            0 => random.random_range(0..trace.len()),
            _ => syncs[random.random_range(0..syncs.len())],
        })
        .collect();
    moments.sort_unstable();
    let runtime = Runtime::new().expect("a runtime");
    let (mut disk, mut ledgers) = (Disk::default(), Ledgers::default());
    let (mut at, mut wrong) = (0, Vec::new());
    for (number, moment) in moments.into_iter().enumerate() {
        for operation in &trace[at..=moment] {
            disk.carry_out(operation);
            ledgers.take_note(operation);
        }
        at = moment + 1;
        let fate = Fate::ALL[number % Fate::ALL.len()];
        let image = disk.image(fate, random);
        let contents = runtime.block_on(contents_of(&image));
        if let Err(what) = ledgers.judge(&contents, durability) {
            wrong.push(format!("operation {moment}, {fate:?}: {what}"));
        }
    }
    wrong
}

#[test]
fn nothing_acknowledged_is_lost_with_the_power() {
    let mut random = SmallRng::seed_from_u64(plan::seed());
    let trace = record(None);
    let images = plan::times(120);
    let wrong = judge(&trace, images, Durability::Full, &mut random);
    assert_eq!(wrong, [""; 0]);
    println!("{} operations, {images} images", trace.len());
    let checkpoints = |operation: &&Operation| {
        operation.file == FILE && matches!(operation.change, Change::Write(..))
    };
    assert!(
        trace.iter().filter(checkpoints).count() > 500,
        "there is no checkpoint"
    );
}

#[test]
fn with_normal_the_file_is_consistent_and_the_loss_is_since_the_last_sync() {
    let mut random = SmallRng::seed_from_u64(plan::seed());
    let trace = record(Some(Bug::SkipsSync));
    let images = plan::times(60);
    let wrong = judge(&trace, images, Durability::UpToLastSync, &mut random);
    assert_eq!(wrong, [""; 0]);
    let detected = judge(&trace, 60, Durability::Full, &mut random);
    let lost = detected.iter().filter(|what| what.ends_with("is lost"));
    assert!(
        lost.count() > 0,
        "the suite takes NORMAL for FULL: {detected:#?}"
    );
}

/// Runs the errand with each of its operations on the database failing in turn, and `failing - 1` of those
/// that follow. Checks that each error is typed, that the errand recovers, and that what was acknowledged is
/// stored.
fn fail_each(errno: i32, failing: u64) {
    let runtime = Runtime::new().expect("a runtime");
    let total = operations_of_an_errand(Role::Errand, |_| {});
    let mut reported = 0;
    for first in 1..=total {
        let told = format!("operation {first} of {total}");
        let folder = TempDir::new().expect("a folder");
        let with = SHIM.failing(folder.path(), first, errno, failing);
        let (process, lines) = start(folder.path(), 0, Role::Errand, None, with);
        let (status, complaints) = process.wait();
        assert!(
            status.success() && complaints.is_empty(),
            "{told}: {status}: {complaints}"
        );
        for (_, line) in lines.try_iter() {
            let error = line.strip_prefix(FAILED);
            let typed = |error: &str| error.starts_with(" Storage ");
            assert!(error.is_none_or(typed), "{told}: {line}");
            reported += u64::from(error.is_some());
        }
        let judged = judge_errand(&runtime, Role::Errand, folder.path());
        judged.unwrap_or_else(|what| panic!("{told}: {what}"));
    }
    println!("{total} operations failed in turn, {reported} errors");
    assert!(
        reported > total / 2,
        "{reported} errors of {total} operations"
    );
}

/// Returns the number of operations on the database of an errand, in a folder that `prepare` has filled.
fn operations_of_an_errand(role: Role, prepare: impl FnOnce(&Path)) -> u64 {
    let folder = TempDir::new().expect("a folder");
    prepare(folder.path());
    let count = folder.path().with_extension("count");
    let counting = SHIM.counting(folder.path(), &count);
    let (undisturbed, _lines) = start(folder.path(), 0, role, None, counting);
    let (status, complaints) = undisturbed.wait();
    assert!(
        status.success() && complaints.is_empty(),
        "{status}: {complaints}"
    );
    let total = std::fs::read_to_string(&count).expect("the count");
    std::fs::remove_file(&count).expect("removed");
    let total = total.parse().expect("a number");
    assert!(total > 40, "{total} operations");
    total
}

/// Compares the file with the ledger.
fn judge_errand(runtime: &Runtime, role: Role, folder: &Path) -> Result<(), String> {
    let mut ledgers = Ledgers::default();
    ledgers.read(folder, 0);
    let file = folder.join(FILE);
    let builder = builder(&file);
    let builder = match role {
        Role::Adopt => builder.adopt(),
        _ => builder,
    };
    let contents = runtime.block_on(contents(&file, builder));
    ledgers.judge(&contents, Durability::Full)
}

/// Runs the errand with the process killed before each of its operations on the database in turn: before, within
/// and after each commit, each checkpoint and the creation of the tables, and whatever its ledger says next. Checks
/// that what was acknowledged is stored.
fn kill_at_each(role: Role, prepare: impl Fn(&Path), check: impl Fn(&Path)) {
    let runtime = Runtime::new().expect("a runtime");
    let total = operations_of_an_errand(role, &prepare);
    let mut killed = 0;
    for at in 1..=total {
        let told = format!("operation {at} of {total}");
        let folder = TempDir::new().expect("a folder");
        prepare(folder.path());
        let with = SHIM.killing(folder.path(), at);
        let (process, _lines) = start(folder.path(), 0, role, None, with);
        let (status, complaints) = process.wait();
        assert!(complaints.is_empty(), "{told}: {complaints}");
        match status.signal() {
            // Checkpoints when idle may make the last operations fewer.
            None => assert!(status.success(), "{told}: {status}"),
            Some(signal) => {
                assert_eq!(signal, 9, "{told}");
                killed += 1;
            }
        }
        let judged = judge_errand(&runtime, role, folder.path());
        judged.unwrap_or_else(|what| panic!("{told}: {what}"));
        check(folder.path());
    }
    println!("killed before {killed} of {total} operations");
    assert!(killed > total / 2, "{killed} kills at {total} operations");
}

#[test]
fn a_process_may_die_before_each_write_and_each_sync() {
    kill_at_each(Role::Errand, |_| {}, |_| {});
}

#[test]
fn a_process_may_die_before_each_write_and_each_sync_of_an_adoption() {
    kill_at_each(Role::Adopt, create_application, assert_application);
}

#[test]
fn each_write_and_each_sync_may_fail_once() {
    const EIO: i32 = 5;
    fail_each(EIO, 1);
}

#[test]
fn the_disk_may_be_full_for_a_while_from_each_write_on() {
    const ENOSPC: i32 = 28;
    fail_each(ENOSPC, 5);
}

#[test]
fn a_false_acknowledgement_is_detected() {
    let folder = TempDir::new().expect("a folder");
    let bug = Some(Bug::AcknowledgesEarly);
    let (process, _lines) = start(folder.path(), 0, Role::Errand, bug, Environment::new());
    // It fails when it looks for its messages.
    let _ = process.wait();
    let runtime = Runtime::new().expect("a runtime");
    let judged =
        judge_errand(&runtime, Role::Errand, folder.path()).expect_err("the suite misses the bug");
    assert!(judged.ends_with("is lost"), "{judged}");
}
