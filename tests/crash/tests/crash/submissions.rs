//! Messages that are to be submitted once, by key or by a schedule, are submitted once by processes that are killed.

use std::path::Path;

use queue_crash::plan;
use queue_crash::sabotage::Bug;
use queue_crash::submissions::Submissions;
use queue_crash::ticks::Ticks;
use queue_crash::worker::Kept;

const PROGRAM: &str = env!("CARGO_BIN_EXE_crash-worker");

fn submissions(kept: Kept, rounds: usize, bug: Option<Bug>) -> Submissions<'static> {
    Submissions {
        program: Path::new(PROGRAM),
        seed: plan::seed(),
        kept,
        rounds,
        bug,
    }
}

fn ticks(outages: usize, bug: Option<Bug>) -> Ticks<'static> {
    Ticks {
        program: Path::new(PROGRAM),
        seed: plan::seed(),
        outages,
        bug,
    }
}

#[tokio::test]
async fn of_a_key_that_killed_processes_submit_one_message_is_put() {
    let run = submissions(Kept::File, plan::times(20), None);
    let figures = run.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{figures}");
    assert!(
        figures.orphans > 0,
        "{figures}: a process aborted after a put"
    );
}

/// The processes wait for the lease of those that were killed, half a minute.
#[tokio::test]
async fn of_a_key_that_killed_processes_record_in_a_folder_all_messages_have_one_id() {
    let run = submissions(Kept::Folder, plan::times(1), None);
    let figures = run.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{figures}");
    assert!(
        figures.copies > 0,
        "{figures}: a process aborted after a put"
    );
}

#[tokio::test]
async fn each_tick_is_submitted_once_or_left_out_by_killed_processes() {
    let figures = ticks(plan::times(8), None).run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{figures}");
    assert!(figures.missed > 0, "{figures}: there were outages");
}

#[tokio::test]
async fn a_put_apart_from_the_record_of_its_key_is_detected() {
    for (bug, what) in [(Bug::RecordsFirst, " 0 "), (Bug::PutsFirst, " 2 ")] {
        let wrong = submissions(Kept::File, 2, Some(bug)).run().await;
        let wrong = wrong.expect_err("the bug is missed");
        // Of each key that was under way.
        let of_key = |wrong: &String| wrong.starts_with("key ") && wrong.contains(what);
        assert!(wrong.iter().all(of_key), "{bug:?}: {wrong:#?}");
    }
}

#[tokio::test]
async fn keys_that_processes_record_apart_are_detected() {
    let wrong = submissions(Kept::Folder, 1, Some(Bug::BeginsAlways));
    let wrong = wrong.run().await.expect_err("the bug is missed");
    let of_key = |wrong: &String| wrong.starts_with("key ");
    assert!(wrong.iter().all(of_key), "{wrong:#?}");
}

#[tokio::test]
async fn a_put_apart_from_the_record_of_its_tick_is_detected() {
    for (bug, times) in [(Bug::RecordsFirst, 0), (Bug::PutsFirst, 2)] {
        let wrong = ticks(1, Some(bug)).run().await;
        let wrong = wrong.expect_err("the bug is missed");
        let expected = format!("all: tick 1 was submitted {times} times");
        assert_eq!(wrong, [expected], "{bug:?}");
    }
}
