use bytes::Bytes;
use queue_core::Timestamp;
use queue_core::backend::{PopReceipt, StorageId};

use super::*;

fn record(failures: usize, forgiven: usize, last_chance: bool) -> AttemptRecord {
    let mut record = AttemptRecord::default();
    (record.failures, record.forgiven, record.last_chance) = (failures, forgiven, last_chance);
    record
}

#[test]
fn failures_alone_are_counted_exactly() {
    for failures in 0..5 {
        let verdict = judge(failures + 1, &record(failures, 0, false), 5);
        assert_eq!(
            verdict,
            AttemptVerdict::Run {
                attempt: failures + 1,
                mark: false
            }
        );
    }
    assert_eq!(
        judge(6, &record(5, 0, false), 5),
        AttemptVerdict::Poison {
            reason: PoisonReason::Failed,
            attempts: 5
        }
    );
}

#[test]
fn forgiven_receives_do_not_count() {
    assert_eq!(
        judge(100, &record(2, 97, false), 5),
        AttemptVerdict::Run {
            attempt: 3,
            mark: false
        }
    );
}

#[test]
fn attempts_before_a_redrive_count_but_leave_one_more() {
    let kept = |earlier, failures| {
        let mut record = record(failures, 0, false);
        record.earlier = earlier;
        record
    };
    let run = |attempt| AttemptVerdict::Run {
        attempt,
        mark: false,
    };
    for (earlier, failures) in [(2, 0), (2, 1), (3, 0), (7, 0), (usize::MAX - 1, 0)] {
        let verdict = judge(failures + 1, &kept(earlier, failures), 4);
        assert_eq!(verdict, run(earlier + failures + 1));
    }
    for (earlier, failures) in [(2, 2), (7, 1)] {
        let poison = AttemptVerdict::Poison {
            reason: PoisonReason::Failed,
            attempts: earlier + failures,
        };
        assert_eq!(judge(failures + 1, &kept(earlier, failures), 4), poison);
    }
    let crashed = judge(2, &kept(4, 0), 4);
    let marked = AttemptVerdict::Run {
        attempt: 6,
        mark: true,
    };
    assert_eq!(crashed, marked);
}

#[test]
fn unexplained_receives_get_one_more_run() {
    assert_eq!(
        judge(6, &record(0, 0, false), 5),
        AttemptVerdict::Run {
            attempt: 6,
            mark: true
        }
    );
    assert_eq!(
        judge(7, &record(0, 0, true), 5),
        AttemptVerdict::Poison {
            reason: PoisonReason::Crashed,
            attempts: 6
        }
    );
}

#[test]
fn a_mark_below_the_threshold_means_nothing() {
    assert_eq!(
        judge(2, &record(0, 0, true), 5),
        AttemptVerdict::Run {
            attempt: 2,
            mark: false
        }
    );
}

#[test]
fn a_lost_count_does_not_underflow() {
    assert_eq!(
        judge(0, &record(3, 3, false), 5),
        AttemptVerdict::Run {
            attempt: 4,
            mark: false
        }
    );
}

#[test]
fn bare_bodies_have_one_receive_of_margin() {
    assert_eq!(
        judge_bare(6, 5),
        AttemptVerdict::Run {
            attempt: 6,
            mark: false
        }
    );
    assert!(matches!(
        judge_bare(7, 5),
        AttemptVerdict::Poison { attempts: 6, .. }
    ));
}

/// A message that was put at the first time and received for the `count`th time at the second.
fn received(count: usize) -> ReceivedMessage {
    let mut received = ReceivedMessage::new(
        StorageId::new("1"),
        PopReceipt::new("1"),
        Bytes::new(),
        time("2026-01-01T00:00:00Z"),
        time("2026-01-02T00:00:00Z"),
    );
    received.dequeue_count = count;
    received
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

/// All records with these counts, and the largest.
fn records() -> impl Iterator<Item = AttemptRecord> {
    let numbers = || (0..=12).chain([usize::MAX - 1, usize::MAX]);
    numbers().flat_map(move |failures| {
        numbers().flat_map(move |forgiven| {
            [false, true].map(|last_chance| record(failures, forgiven, last_chance))
        })
    })
}

#[test]
fn whatever_was_written_the_first_receive_runs() {
    for (mut record, threshold) in records().flat_map(|r| (1..6).map(move |t| (r.clone(), t))) {
        believe(&mut record, &received(1));
        assert_eq!(
            judge(1, &record, threshold),
            AttemptVerdict::Run {
                attempt: 1,
                mark: false
            }
        );
    }
}

/// Nothing but the mark is written, because every run ends in a crash.
#[test]
fn whatever_was_written_a_message_that_always_crashes_is_poison_in_the_end() {
    for (first, threshold) in records().flat_map(|r| (1..6).map(move |t| (r.clone(), t))) {
        let (mut stored, mut count, mut runs) = (first.clone(), 0, 0);
        let poison = loop {
            count += 1;
            let mut record = stored.clone();
            believe(&mut record, &received(count));
            match judge(count, &record, threshold) {
                AttemptVerdict::Run { mark, .. } => {
                    runs += 1;
                    if mark {
                        record.last_chance = true;
                        stored = record;
                    }
                }
                AttemptVerdict::Poison { reason, .. } => break reason,
            }
            assert!(count < 2 * threshold + 2, "{first:?} at {threshold}");
        };
        let reasons = [PoisonReason::Crashed, PoisonReason::Failed];
        assert!(reasons.contains(&poison), "{first:?} at {threshold}");
        assert!(runs >= threshold.min(count - 1), "{first:?}: {runs} runs");
    }
}

#[test]
fn a_record_of_no_more_than_the_earlier_receives_is_believed() {
    let mut written = record(2, 3, true);
    written.last_error = Some("busy".to_owned());
    let mut believed = written.clone();
    believe(&mut believed, &received(6));
    assert_eq!(believed, written);
    believe(&mut believed, &received(5));
    assert_eq!(believed, AttemptRecord::default());
}

#[test]
fn a_date_outside_the_life_of_the_message_is_not_believed() {
    for (since, expected) in [
        ("2025-12-31T23:59:59Z", false),
        ("2026-01-01T00:00:00Z", true),
        ("2026-01-02T00:00:02Z", true),
        ("2026-01-02T00:00:03Z", false),
    ] {
        let mut record = record(0, 1, false);
        record.newer_since = Some(time(since));
        believe(&mut record, &received(2));
        assert_eq!(record.newer_since.is_some(), expected, "{since}");
        assert_eq!(record.forgiven, 1, "{since}");
    }
}

/// A copy that was taken out of a pack or imported from an export has the counts of a new message.
#[test]
fn a_time_before_which_it_is_not_due_is_believed_whatever_the_counts_are() {
    for forgiven in [0, 1, 2] {
        for (due, expected) in [
            ("2026-03-01T00:00:00Z", true),
            ("9999-01-01T00:00:00Z", false),
        ] {
            let mut record = record(0, forgiven, false);
            record.not_before = Some(time(due));
            believe(&mut record, &received(2));
            assert_eq!(record.not_before.is_some(), expected, "{forgiven} {due}");
        }
    }
}

const DOCUMENTATION: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/states.md"));

/// The cells of the table in the documentation with this header.
fn documented(header: &str) -> Vec<Vec<&'static str>> {
    let lines = DOCUMENTATION
        .lines()
        .skip_while(|line| !line.starts_with(header));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect();
    rows.map(cells).collect()
}

fn text_of(verdict: AttemptVerdict) -> String {
    match verdict {
        AttemptVerdict::Run { mark: false, .. } => "run".to_owned(),
        AttemptVerdict::Run { mark: true, .. } => {
            "write `lastchance`, then run once more".to_owned()
        }
        AttemptVerdict::Poison { reason, .. } => format!("poison queue, *{reason}*"),
    }
}

#[test]
fn the_verdicts_in_the_documentation_are_complete_and_true() {
    let rows = documented("| attempts | unexplained | `lastchance` | verdict |");
    assert_eq!(rows.len(), 4);
    let mut used = vec![0; rows.len()];
    let threshold = 3;
    for (failures, unexplained, marked) in
        (0..6).flat_map(|f| (0..6).flat_map(move |u| [false, true].map(|m| (f, u, m))))
    {
        let attempts = if failures + unexplained < threshold {
            "below the threshold"
        } else {
            "at or above the threshold"
        };
        let unexplained_cell = if unexplained == 0 { "0" } else { "above 0" };
        let marked_cell = if marked { "yes" } else { "no" };
        let matches = |row: &Vec<&str>| {
            row[0] == attempts
                && [unexplained_cell, "any"].contains(&row[1])
                && [marked_cell, "any"].contains(&row[2])
        };
        let row = rows.iter().position(matches).expect("a row for every case");
        used[row] += 1;
        let verdict = judge(
            1 + failures + unexplained,
            &record(failures, 0, marked),
            threshold,
        );
        assert_eq!(
            text_of(verdict),
            rows[row][3],
            "{failures} {unexplained} {marked}"
        );
    }
    assert!(!used.contains(&0), "{used:?}");
}

#[test]
fn the_message_that_always_crashes_ends_as_documented() {
    let (mut marked, mut written) = (false, Vec::new());
    for count in 1.. {
        let verdict = judge(count, &record(0, 0, marked), 3);
        let [attempts, yes] = [
            (count - 1).to_string(),
            if marked { "yes" } else { "no" }.to_owned(),
        ];
        let row = [
            count.to_string(),
            "0".to_owned(),
            attempts.clone(),
            attempts,
            yes,
        ];
        written.push([row.to_vec(), vec![text_of(verdict)]].concat());
        match verdict {
            AttemptVerdict::Run { mark, .. } => marked |= mark,
            AttemptVerdict::Poison { .. } => break,
        }
    }
    let rows =
        documented("| receive | failures | unexplained | attempts | `lastchance` | verdict |");
    assert_eq!(rows, written);
}
