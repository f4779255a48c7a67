//! Work that is asked for many times is done once, and long work is not done anew, by processes that are killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::channel;

use queue_crash::duplicates::Duplicates;
use queue_crash::plan;
use queue_crash::process::Process;
use queue_crash::sabotage::Bug;
use queue_crash::worker::{Arguments, Job, Kept, PORTIONS, Role, value};
use queue_runtime::QueueService;

const PROGRAM: &str = env!("CARGO_BIN_EXE_crash-worker");

fn duplicates(kept: Kept, seed: u64, bug: Option<Bug>) -> Duplicates<'static> {
    Duplicates {
        program: Path::new(PROGRAM),
        seed,
        kept,
        keys: 4,
        bug,
    }
}

/// A hundred calls for each of some keys, in four processes, for each of some seeds.
fn done_once(kept: Kept) {
    let first = plan::seed();
    let (mut keys, mut claims) = (0, 0);
    for seed in (0..plan::times(2)).map(|at| first.wrapping_add(at as u64)) {
        let figures = duplicates(kept, seed, None).run();
        let figures = figures.unwrap_or_else(|wrong| panic!("CRASH_SEED={seed}: {wrong:#?}"));
        println!("CRASH_SEED={seed}: {figures}");
        keys += figures.keys;
        claims += figures.claims;
    }
    assert!(claims > keys, "no kill hit the process that held a claim");
}

#[test]
fn of_a_hundred_duplicates_in_killed_processes_one_is_done_in_the_file() {
    done_once(Kept::File);
}

#[test]
fn of_a_hundred_duplicates_in_killed_processes_one_is_done_in_a_folder() {
    done_once(Kept::Folder);
}

#[test]
fn a_store_that_always_begins_is_detected() {
    let wrong = duplicates(Kept::File, plan::seed(), Some(Bug::BeginsAlways)).run();
    let wrong = wrong.expect_err("the bug is missed");
    let twice = |wrong: &String| wrong.contains("held it at a time");
    assert!(wrong.iter().any(twice), "{wrong:#?}");
}

/// Does a job of a hundred portions by processes that are killed after each. Returns how often each portion was done,
/// and the result, if the job is complete.
async fn job_of_portions(bug: Option<Bug>) -> (BTreeMap<u64, usize>, Option<u64>) {
    let (folder, seed) = (tempfile::tempdir().expect("a folder"), plan::seed());
    let file = folder.path().join("queues.db");
    let ledger = folder.path().join("ledger");
    let service = QueueService::connect(&format!("sqlite:{}", file.display())).await;
    let service = service.expect("a new file");
    service.submit(Job {}).await.expect("submitted");
    drop(service);
    let (sender, _lines) = channel();
    // Each portion takes one process, and the completion one. With the bug, a few show it.
    for number in 1..=if bug.is_some() { 4 } else { PORTIONS + 1 } {
        let arguments = Arguments {
            role: Role::Portions,
            file: file.clone(),
            ledger: ledger.clone(),
            number,
            seed,
            bug,
            environment: Vec::new(),
        };
        let process = Process::start(Path::new(PROGRAM), &arguments, sender.clone());
        let (status, complaints) = process.wait();
        assert_eq!(complaints, "");
        if status.success() {
            break;
        }
    }
    let text = std::fs::read_to_string(&ledger).expect("a ledger");
    let (mut done, mut sum) = (BTreeMap::new(), None);
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("portion", portion)) => {
                *done.entry(portion.parse().expect("a number")).or_default() += 1;
            }
            Some(("sum", found)) => sum = Some(found.parse().expect("a number")),
            _ => panic!("not an entry: {line}"),
        }
    }
    (done, sum)
}

#[tokio::test]
async fn a_job_whose_process_is_killed_after_each_portion_does_each_at_most_twice() {
    let (done, sum) = job_of_portions(None).await;
    assert_eq!(sum, Some((0..PORTIONS).map(value).sum()));
    assert_eq!(
        done.keys().copied().collect::<Vec<_>>(),
        (0..PORTIONS).collect::<Vec<_>>()
    );
    let often = done.iter().filter(|(_, times)| **times > 2);
    assert_eq!(often.count(), 0, "{done:?}");
    let twice = done.values().filter(|times| **times == 2).count();
    println!("{twice} of {PORTIONS} portions were done twice");
    assert!(
        twice > 0,
        "no process was killed before it recorded its portion"
    );
}

#[tokio::test]
async fn portions_that_are_not_recorded_are_detected() {
    let (done, _) = job_of_portions(Some(Bug::SkipsCheckpoints)).await;
    assert!(done[&0] > 2, "{done:?}");
}
