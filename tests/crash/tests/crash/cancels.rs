//! Messages are cancelled while processes that handle them are killed.

use std::path::Path;

use queue_crash::cancels::Cancels;
use queue_crash::plan;

#[tokio::test(flavor = "multi_thread")]
async fn cancels_agree_with_what_was_handled_when_processes_are_killed() {
    agree(24, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_agree_with_what_was_handled_over_shards() {
    agree(12, Some(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_agree_with_what_was_handled_over_shards_in_several_files() {
    agree(12, Some(2)).await;
}

async fn agree(kills: usize, shards: Option<usize>) {
    let cancels = Cancels {
        program: Path::new(env!("CARGO_BIN_EXE_crash-worker")),
        seed: plan::seed(),
        kills: plan::times(kills),
        database: None,
        shards,
    };
    let figures = cancels.run().await;
    let figures = figures.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    println!("{} kills: {figures}", cancels.kills);
    assert!(figures.removed > 0 && figures.completed > 0, "{figures}");
}
