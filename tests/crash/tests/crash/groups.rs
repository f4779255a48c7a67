//! The messages of a group are handled in their order, one at a time, when processes are killed and restarted.

use std::num::NonZeroU32;
use std::path::Path;

use queue_crash::groups::Steps;
use queue_crash::plan;
use queue_crash::sabotage::Bug;

const LIMIT: Option<NonZeroU32> = NonZeroU32::new(3);

fn steps(kills: usize, bug: Option<Bug>) -> Steps<'static> {
    Steps {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        kills,
        bug,
        url: None,
        limit: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_keep_their_order_when_processes_are_killed_and_restarted() {
    let steps = steps(plan::times(24), None);
    let figures = steps.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{} kills: {figures}", steps.kills);
    assert!(
        figures.restarts > 0 && figures.messages as usize > steps.kills,
        "{figures}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_groups_holds_when_processes_are_killed_and_restarted() {
    let mut steps = steps(plan::times(16), None);
    steps.limit = LIMIT;
    let figures = steps.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{} kills: {figures}", steps.kills);
    assert!(figures.restarts > 0, "{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_above_the_limit_are_detected() {
    let mut steps = steps(0, Some(Bug::DropsGroups));
    steps.limit = LIMIT;
    let wrong = steps.run().await.expect_err("the bug is missed");
    assert!(
        wrong.iter().any(|wrong| wrong.contains("at once")),
        "{wrong:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_their_groups_are_detected() {
    let wrong = steps(0, Some(Bug::DropsGroups))
        .run()
        .await
        .expect_err("the bug is missed");
    assert!(
        wrong
            .iter()
            .any(|wrong| wrong.contains("handled again after the next one")),
        "{wrong:#?}"
    );
}
