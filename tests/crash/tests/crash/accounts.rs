//! Transfers that are handled in transactions, by processes that are killed at random, are done once.

use std::path::Path;

use queue_crash::accounts::Accounts;
use queue_crash::plan;
use queue_crash::sabotage::Bug;

fn accounts(kills: usize, bug: Option<Bug>) -> Accounts<'static> {
    Accounts {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        kills,
        bug,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_balance_is_exact_when_processes_are_killed() {
    let accounts = accounts(plan::times(16), None);
    let figures = accounts.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{} kills: {figures}", accounts.kills);
    assert!(figures.orders > accounts.kills, "{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_apart_from_its_rows_is_detected() {
    let accounts = accounts(10, Some(Bug::CompletesApart));
    let wrong = accounts.run().await.expect_err("the bug is missed");
    let twice = |wrong: &String| wrong.contains("entered several times");
    assert!(wrong.iter().any(twice), "{wrong:#?}");
}
