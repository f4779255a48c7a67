//! A message that is submitted every five minutes.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::recurring::{Missed, ScheduleHandle, every};
use queue_runtime::testing::TokioClock;
use queue_runtime::{Message, QueueService, Timestamp};
use queue_tests::MINUTE;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "ticks")]
pub(crate) struct Tick {
    pub(crate) at: Timestamp,
}

pub(crate) fn at(time: &str) -> Timestamp {
    time.parse().expect("a time")
}

/// Schedules a tick every five minutes.
pub(crate) fn schedule(service: &QueueService, missed: Missed) -> ScheduleHandle {
    let schedule = service.schedule("five", every(5 * MINUTE), |at| Tick { at });
    schedule.missed(missed).start().expect("starts")
}

/// The schedules begin with the clock, at midnight. Those of a test sleep as long as it does, so that it is a second
/// behind them.
pub(crate) async fn until(clock: &TokioClock, time: &str) {
    let left = at(time).duration_since(queue_runtime::clock::Clock::now(clock));
    sleep(left.unsigned_abs() + Duration::from_secs(1)).await;
}

pub(crate) async fn connect(backend: Arc<MemoryBackend>, clock: &TokioClock) -> QueueService {
    let service = QueueService::with_backend(backend).clock(Arc::new(clock.clone()));
    let service = service.on_current_runtime().connect();
    service.await.expect("connects")
}

pub(crate) fn memory(clock: &TokioClock) -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new(Arc::new(clock.clone())))
}

/// The ticks on the queue, in the order in which they were submitted. No two have the same id.
pub(crate) async fn ticks(service: &QueueService) -> Vec<Timestamp> {
    let (mut ticks, mut ids) = (Vec::new(), std::collections::HashSet::new());
    while let Some(tick) = service
        .accept::<Tick>()
        .create_queue()
        .await
        .expect("accepts")
    {
        assert!(ids.insert(tick.envelope().id.clone()), "twice: {tick:?}");
        ticks.push(tick.at);
        tick.complete().await.expect("completed");
    }
    ticks
}

/// The ticks of every five minutes.
pub(crate) fn expected(from: &str, to: &str) -> Vec<Timestamp> {
    let ticks = std::iter::successors(Some(at(from)), |tick| Some(*tick + 5 * MINUTE));
    ticks.take_while(|tick| *tick <= at(to)).collect()
}
