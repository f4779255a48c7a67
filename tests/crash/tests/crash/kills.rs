//! Processes on one SQLite file are killed and stopped at random, and nothing is lost.

use std::path::Path;

use queue_crash::campaign::{Campaign, Payloads};
use queue_crash::history::{Figures, Violation};
use queue_crash::plan;
use queue_crash::sabotage::{Bug, Point};
use queue_crash::worker::Role;

use crate::points::{self, BETWEEN_STEPS, STEPS};

const PROGRAM: &str = env!("CARGO_BIN_EXE_crash-worker");

/// The largest number of lines that the processes print between two kills.
const BETWEEN: usize = 60;

const ROLES: &[Role] = &[
    Role::Produce,
    Role::Produce,
    Role::Listen,
    Role::Listen,
    Role::Accept,
    Role::Accept,
    Role::Redrive,
];

/// A campaign in which nobody is killed yet.
fn campaign() -> Campaign<'static> {
    Campaign {
        program: Path::new(PROGRAM),
        seed: plan::seed(),
        roles: ROLES,
        between: BETWEEN,
        kills: 0,
        stops: 0,
        ends: 0,
        aborts: &[],
        alone_after: None,
        bug: None,
        payloads: Payloads::InFile,
        database: None,
    }
}

/// Checks that a campaign loses nothing.
fn loses_nothing(campaign: &Campaign<'_>) -> Figures {
    let figures = campaign
        .run()
        .unwrap_or_else(|violations| panic!("{violations:#?}"));
    println!(
        "{} kills, {} stops: {figures}",
        campaign.kills, campaign.stops
    );
    figures
}

#[test]
fn nothing_is_lost_when_processes_are_killed_and_stopped() {
    let campaign = Campaign {
        // Enough that some of the messages, which are rejected by chance, are poison.
        kills: plan::times(40),
        stops: plan::times(5),
        ends: plan::times(5),
        ..campaign()
    };
    let figures = loses_nothing(&campaign);
    let Campaign { kills, .. } = campaign;
    assert!(figures.acknowledged > 2 * kills, "{figures}");
    assert!(figures.recovered > 0 && figures.poisoned > 0, "{figures}");
}

/// The same with consumers that take several messages at a time, some of which are in one batch that fails as a whole.
#[test]
fn nothing_is_lost_when_processes_that_take_several_at_a_time_are_killed_and_stopped() {
    let campaign = Campaign {
        roles: &[
            Role::Produce,
            Role::Produce,
            Role::Batch,
            Role::Batch,
            Role::AcceptMany,
            Role::AcceptMany,
            Role::Redrive,
        ],
        kills: plan::times(24),
        stops: plan::times(3),
        ends: plan::times(3),
        ..campaign()
    };
    let figures = loses_nothing(&campaign);
    assert!(figures.acknowledged > campaign.kills, "{figures}");
    assert!(figures.recovered > 0 && figures.poisoned > 0, "{figures}");
}

/// The messages of [`of_keys`] in the test command; `cargo xtask crash` has `--times` as many.
const OF_KEYS: usize = 400;

/// Consumers of messages of a hundred keys, which they handle one at a time. They start when there is a backlog, so that
/// many wait for their turn.
fn of_keys(seed: u64, bug: Option<Bug>) -> Campaign<'static> {
    Campaign {
        seed,
        roles: &[
            Role::Produce,
            Role::Produce,
            Role::Keys,
            Role::Keys,
            Role::Redrive,
        ],
        kills: 20,
        stops: 4,
        ends: 2,
        alone_after: Some(400),
        bug,
        ..campaign()
    }
}

/// Nothing is lost either, and no process handles two messages of a key at a time, or out of their order.
#[test]
fn messages_of_a_key_are_handled_one_at_a_time_when_processes_are_killed_and_stopped() {
    let (mut seed, mut completed) = (plan::seed(), 0);
    while completed < plan::times(OF_KEYS) {
        let figures = loses_nothing(&of_keys(seed, None));
        assert!(figures.recovered > 0 && figures.completed > 0, "{figures}");
        completed += figures.completed;
        seed = seed.wrapping_add(1);
    }
}

/// The same with payloads in a folder beside the file: nothing is missing, and nothing is left after one sweep.
#[test]
fn no_payload_is_missing_or_left_when_processes_are_killed_and_stopped() {
    let campaign = Campaign {
        kills: plan::times(16),
        stops: plan::times(2),
        ends: plan::times(2),
        payloads: Payloads::InFolder,
        ..campaign()
    };
    let figures = loses_nothing(&campaign);
    assert!(figures.acknowledged > campaign.kills, "{figures}");
}

/// Processes abort at each named point, while others work. Then some are killed, too.
fn abort_at(aborts: &[(Point, Role)]) {
    let campaign = Campaign {
        kills: 2,
        aborts,
        ..campaign()
    };
    let figures = loses_nothing(&campaign);
    for (point, role) in aborts {
        println!("aborted: {role} {point:?}");
    }
    println!("{} aborts: {figures}", aborts.len());
}

#[test]
fn nothing_is_lost_when_processes_abort_at_named_points() {
    abort_at(STEPS);
}

/// As on a backend that is not atomic, where copies of a message are possible.
#[test]
fn nothing_is_lost_when_processes_abort_between_steps_that_belong_together() {
    abort_at(BETWEEN_STEPS);
}

#[test]
fn the_named_points_are_all_covered() {
    let covered = points::all();
    let missing = |point: &&Point| covered.iter().all(|(of, _)| of != *point);
    let missing: Vec<_> = Point::ALL.iter().filter(missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Checks that campaigns with a planted bug lose messages.
fn loses(bug: Bug) {
    let campaign = Campaign {
        roles: &[Role::Produce, Role::Accept, Role::Listen],
        kills: 24,
        bug: Some(bug),
        ..campaign()
    };
    campaign.detects(|violation| matches!(violation, Violation::Lost(_)));
}

#[test]
fn a_submission_acknowledged_before_its_commit_is_detected() {
    loses(Bug::AcknowledgesEarly);
}

#[test]
fn a_message_deleted_before_its_handler_ran_is_detected() {
    loses(Bug::DeletesEarly);
}

#[test]
fn a_listener_that_ignores_keys_is_detected() {
    let campaign = of_keys(plan::seed(), Some(Bug::IgnoresKeys));
    campaign.detects(|violation| matches!(violation, Violation::Overlapping(_)));
}
