use std::sync::Arc;

use queue_core::backend::Backend;
use queue_runtime::QueueService;

use super::Desk;
use crate::sabotage::Bug;
use crate::ticks::{POLICIES, ToldClock, start};

/// Runs a schedule for each policy from the first time that it is told, until the input ends; with a bug, only the
/// first, so that it is known where the process aborts.
pub(super) async fn run(desk: &Desk, backend: Arc<dyn Backend>, bug: Option<Bug>) {
    let mut input = desk.input.clone();
    if input.changed().await.is_err() {
        return;
    }
    let clock = ToldClock::new(input);
    let service = QueueService::with_backend(backend)
        .clock(Arc::new(clock))
        .connect();
    let service = service.await.expect("connecting opens nothing");
    let policies = &POLICIES[..if bug.is_some() { 1 } else { POLICIES.len() }];
    let running: Vec<_> = policies
        .iter()
        .map(|policy| start(&service, *policy))
        .collect();
    desk.stopping().await;
    for schedule in running {
        schedule.stop().await;
    }
}
