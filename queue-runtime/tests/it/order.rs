//! Messages that overtake each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::Operation;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{Disposition, ListenerEventKind, Message, QueueService, Received, RetryPolicy};
use serde::{Deserialize, Serialize};

use crate::support::{NEVER, count, events, poison, stop};

/// A step of a journey. Each step but the last submits the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Message)]
#[message(queue = "steps")]
struct Step {
    journey: u32,
    at: u32,
}

const JOURNEYS: u32 = 60;
const STEPS: u32 = 5;
const RETRY: Duration = Duration::from_millis(400);
/// The longest delay that is injected, in milliseconds.
const LATEST: u64 = 900;

impl Step {
    /// Whether the first attempt fails.
    fn stumbles(&self) -> bool {
        (self.journey + self.at).is_multiple_of(3)
    }

    fn is_rejected(&self) -> bool {
        self.journey % 10 == 9 && self.at == STEPS - 1
    }

    fn handle(&self, attempt: usize) -> Disposition {
        if self.stumbles() && attempt == 1 {
            return Disposition::retry("stumbled");
        }
        if self.is_rejected() {
            return Disposition::reject("lost the way");
        }
        match self.at + 1 {
            STEPS => Disposition::complete(),
            at => Disposition::complete().then(&Self { at, ..self.clone() }),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_message_is_handled_whatever_the_order() {
    let clock = Arc::new(TokioClock::new());
    let memory = MemoryBackend::new(clock.clone());
    let faults = FaultInjector::new(Arc::new(memory));
    println!("seed {}", faults.seed());
    for late in [50, 200, LATEST].map(|late| Fault::VisibleLater(Duration::from_millis(late))) {
        faults.fail_sometimes(0.4, Operation::Put, late.clone());
        faults.fail_sometimes(0.4, Operation::Apply, late);
    }
    let service = QueueService::with_backend(Arc::new(faults.clone())).clock(clock);
    let service = service.on_current_runtime().connect().await;
    let service = service.expect("connects");
    for journey in 0..JOURNEYS {
        let submitted = service.submit(Step { journey, at: 0 }).await;
        submitted.expect("submitted");
    }

    let runs: Arc<Mutex<Vec<(Step, usize)>>> = Arc::default();
    let recorded = Arc::clone(&runs);
    let listener = service.listener(move |step: Received<Step>| {
        let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.push((step.message().clone(), step.attempt()));
        let disposition = step.handle(step.attempt());
        async { disposition }
    });
    let listener = listener
        .retry(RetryPolicy::fixed(RETRY))
        .handler_timeout(NEVER);
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let settled = |event: &ListenerEventKind| match event {
        ListenerEventKind::Completed { .. } | ListenerEventKind::Poisoned { .. } => true,
        ListenerEventKind::NotSettled { .. } => panic!("{event:?}"),
        _ => false,
    };
    events(&mut seen, (JOURNEYS * STEPS) as usize, settled).await;
    stop(listener).await;

    assert!(faults.injected(Operation::Put) > 0 && faults.injected(Operation::Apply) > 0);
    let runs = runs.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let firsts = || {
        runs.iter()
            .filter(|(step, attempt)| (step.at, *attempt) == (0, 1))
    };
    assert!(
        !firsts().is_sorted_by_key(|(step, _)| step.journey),
        "no message was overtaken"
    );
    let mut of_journeys: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for (step, attempt) in runs.iter() {
        of_journeys
            .entry(step.journey)
            .or_default()
            .push((step.at, *attempt));
    }
    let expected = |journey| {
        let steps = (0..STEPS).map(move |at| Step { journey, at });
        let runs = steps
            .flat_map(|step| (1..=1 + usize::from(step.stumbles())).map(move |n| (step.at, n)));
        runs.collect::<Vec<_>>()
    };
    for journey in 0..JOURNEYS {
        assert_eq!(
            of_journeys[&journey],
            expected(journey),
            "journey {journey}"
        );
    }
    assert_eq!(count(&service, "steps").await, 0);
    // The last moves to the poison queue may be late, too.
    tokio::time::advance(Duration::from_millis(LATEST)).await;
    assert_eq!(poison(&service, "steps-poison").await.len(), 6);
}
