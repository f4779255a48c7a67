//! Processes that share a PostgreSQL database are killed and stopped at random, while its server crashes and ends
//! connections, the network between fails, or the server fails over to its standby.

use std::num::NonZeroU32;
use std::path::Path;

use queue_crash::campaign::{Campaign, Payloads};
use queue_crash::cancels::Cancels;
use queue_crash::database::{CUT, Crashes, DEAF, Database, Failover, Network, REFUSED, STALLED};
use queue_crash::groups::Steps;
use queue_crash::history::Violation;
use queue_crash::plan;
use queue_crash::sabotage::Bug;
use queue_crash::worker::Role;
use queue_tests::postgres::PostgresServer;
use tokio::runtime::Runtime;

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
    let database = Database::with(Crashes::start());
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

#[test]
fn nothing_is_lost_when_the_network_fails() {
    let database = Database::with(Network::start());
    let campaign = Campaign {
        kills: plan::times(12),
        stops: plan::times(4),
        ends: plan::times(4),
        ..campaign(&database)
    };
    let figures = campaign.run();
    let figures = figures.unwrap_or_else(|violations| panic!("{violations:#?}"));
    for fault in [CUT, DEAF, REFUSED, STALLED] {
        let count = database.count(fault);
        println!("{fault}: {count} times");
        assert!(count > 0, "{fault}");
    }
    println!("{figures}");
    assert!(figures.acknowledged > campaign.kills, "{figures}");
}

/// More orders than the producers submit at once.
const IN_FLIGHT: usize = 16;

#[test]
fn nothing_is_lost_when_the_server_fails_over_to_its_standby() {
    for round in 0..plan::times(1) {
        let (kills, stops, ends) = (12, 2, 2);
        let database = Database::with(Failover::start((kills + stops + ends) / 2));
        let campaign = campaign(&database);
        let campaign = Campaign {
            seed: campaign.seed.wrapping_add(round as u64),
            between: 120,
            kills,
            stops,
            ends,
            ..campaign
        };
        let figures = campaign.run();
        let figures = figures.unwrap_or_else(|violations| panic!("{violations:#?}"));
        println!("{figures}");
        let late = figures.late.expect("it has failed over");
        assert!(late > IN_FLIGHT, "{figures}");
        assert!(figures.acknowledged > late, "{figures}");
    }
}

/// Checks that campaigns with a planted bug break a promise.
fn is_detected(database: &Database, bug: Bug, is_of_bug: fn(&Violation) -> bool) {
    let campaign = Campaign {
        roles: &[Role::Produce, Role::Produce, Role::Accept, Role::Listen],
        kills: 24,
        bug: Some(bug),
        ..campaign(database)
    };
    campaign.detects(is_of_bug);
}

#[test]
fn a_submission_acknowledged_before_its_commit_is_detected() {
    let database = Database::with(Crashes::start());
    is_detected(&database, Bug::AcknowledgesEarly, |violation| {
        matches!(violation, Violation::Lost(_))
    });
}

#[test]
fn a_message_deleted_before_its_handler_ran_is_detected() {
    let database = Database::with(Crashes::start());
    is_detected(&database, Bug::DeletesEarly, |violation| {
        matches!(violation, Violation::Lost(_))
    });
}

#[test]
fn a_commit_without_an_answer_that_is_denied_is_detected() {
    let database = Database::with(Network::start());
    is_detected(&database, Bug::PresumesNotDone, |violation| {
        // What is not done is tried again.
        matches!(
            violation,
            Violation::Unexpected(_) | Violation::CompletedTwice(_)
        )
    });
}

#[test]
fn cancels_agree_with_what_was_handled_when_processes_are_killed_and_the_network_fails() {
    let database = Database::with(Network::start());
    let cancels = Cancels {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        kills: plan::times(16),
        database: Some(&database),
        shards: None,
    };
    let runtime = Runtime::new().expect("threads");
    let figures = runtime.block_on(cancels.run());
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{} kills: {figures}", cancels.kills);
    assert!(figures.removed > 0 && figures.completed > 0, "{figures}");
}

async fn groups_survive_kills(limit: Option<NonZeroU32>) {
    let server = PostgresServer::start().expect("it starts");
    let steps = Steps {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        kills: plan::times(16),
        bug: None,
        url: Some(server.url()),
        limit,
    };
    let figures = steps.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{} kills: {figures}", steps.kills);
    assert!(figures.restarts > 0, "{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_keep_their_order_when_processes_are_killed_and_restarted() {
    groups_survive_kills(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_groups_holds_when_processes_are_killed_and_restarted() {
    groups_survive_kills(NonZeroU32::new(3)).await;
}
