//! Processes that share a PostgreSQL database are killed and stopped at random, while the server's clock steps forward
//! and back by minutes.
//!
//! After a step forward, leases end early: messages are delivered again, and a receipt of before is refused. After a step
//! back, time stands still for each process that has seen a later one; a process that has not, does not see messages that
//! are leased or submitted at a later time until the clock has caught up. Nothing else may differ.

use std::path::Path;

use queue_crash::campaign::{Campaign, Payloads};
use queue_crash::database::{Database, STEP_BACK, STEP_FORWARD, SteppedClock};
use queue_crash::plan;
use queue_crash::worker::Role;

#[test]
fn nothing_is_lost_when_the_clock_of_the_server_steps() {
    let database = Database::with(SteppedClock::start());
    let campaign = Campaign {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        roles: &[
            Role::Produce,
            Role::Produce,
            Role::Listen,
            Role::Batch,
            Role::Accept,
            Role::AcceptMany,
            Role::Redrive,
        ],
        between: 60,
        kills: plan::times(12),
        stops: plan::times(4),
        ends: plan::times(4),
        aborts: &[],
        alone_after: None,
        bug: None,
        payloads: Payloads::InFile,
        database: Some(&database),
    };
    let figures = campaign.run();
    let figures = figures.unwrap_or_else(|violations| panic!("{violations:#?}"));
    for step in [STEP_FORWARD, STEP_BACK] {
        let count = database.count(step);
        println!("{step}: {count} times");
        assert!(count > 0, "{step}");
    }
    println!("{figures}");
    assert!(figures.acknowledged > campaign.kills, "{figures}");
}
