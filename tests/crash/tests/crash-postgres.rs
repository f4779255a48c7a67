//! Processes that share a PostgreSQL database are killed and stopped at random, while its server crashes and ends
//! connections.

use std::path::Path;

use queue_crash::campaign::{Campaign, Payloads};
use queue_crash::database::Database;
use queue_crash::history::Violation;
use queue_crash::plan;
use queue_crash::sabotage::Bug;
use queue_crash::worker::Role;

const ROLES: &[Role] = &[
    Role::Produce,
    Role::Produce,
    Role::Listen,
    Role::Batch,
    Role::Accept,
    Role::AcceptMany,
    Role::Redrive,
];

fn campaign(database: &Database) -> Campaign<'_> {
    Campaign {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        roles: ROLES,
        between: 60,
        kills: 0,
        stops: 0,
        ends: 0,
        aborts: &[],
        alone_after: None,
        bug: None,
        payloads: Payloads::InFile,
        database: Some(database),
    }
}

#[test]
fn nothing_is_lost_when_processes_and_the_server_are_killed() {
    let database = Database::start();
    let campaign = Campaign {
        kills: plan::times(24),
        stops: plan::times(4),
        ends: plan::times(4),
        ..campaign(&database)
    };
    let figures = campaign.run();
    let figures = figures.unwrap_or_else(|violations| panic!("{violations:#?}"));
    println!("{} kills: {figures}", campaign.kills);
    assert!(figures.acknowledged > campaign.kills, "{figures}");
}

/// Checks that campaigns with a planted bug break a promise.
fn is_detected(bug: Bug, is_of_bug: fn(&Violation) -> bool) {
    let database = Database::start();
    let campaign = Campaign {
        roles: &[Role::Produce, Role::Accept, Role::Listen],
        kills: 24,
        bug: Some(bug),
        ..campaign(&database)
    };
    campaign.detects(is_of_bug);
}

#[test]
fn a_submission_acknowledged_before_its_commit_is_detected() {
    is_detected(Bug::AcknowledgesEarly, |violation| {
        matches!(violation, Violation::Lost(_))
    });
}

#[test]
fn a_message_deleted_before_its_handler_ran_is_detected() {
    is_detected(Bug::DeletesEarly, |violation| {
        matches!(violation, Violation::Lost(_))
    });
}
