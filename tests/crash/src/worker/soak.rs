use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Backend;
use queue_runtime::error::Operation;
use queue_runtime::policy::StorageRetry;
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{ErrorKind, ListenerEventKind, QueueService, Received, RetryPolicy};

use crate::messages::CrashOrder;
use crate::usage::Usage;

/// Orders of each round.
const ORDERS: usize = 24;

/// Longer than any handler, on the slowest machine too.
const GRACE: Duration = Duration::from_secs(60);

/// The pause between two looks at a queue that is being emptied.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Faults of every kind that end by themselves, with their probabilities.
const FAULTS: [(f64, Operation, Fault); 11] = [
    (0.05, Operation::Put, Fault::AnswerLost),
    (0.05, Operation::Put, Fault::Refused(ErrorKind::Unreachable)),
    (0.05, Operation::Receive, Fault::Throttled(None)),
    (0.05, Operation::Receive, Fault::RequestLost),
    (0.03, Operation::Receive, Fault::Panics),
    (0.02, Operation::Receive, Fault::Surplus(3)),
    (0.05, Operation::Delete, Fault::AnswerLost),
    (0.05, Operation::Delete, Fault::RequestLost),
    (0.02, Operation::Delete, Fault::Panics),
    (0.05, Operation::Update, Fault::AnswerLost),
    (0.05, Operation::Apply, Fault::RequestLost),
];

/// Rounds of work under faults, each with a service, a listener and a shutdown of its own; prints what the process uses
/// after a first part of the rounds, and at the end.
pub(super) async fn run(backend: Arc<dyn Backend>, seed: u64, rounds: u32) {
    let warm = rounds.div_ceil(4);
    for round in 1..=rounds {
        let seed = seed.wrapping_add(u64::from(round));
        self::round(FaultInjector::seeded(Arc::clone(&backend), seed)).await;
        if round == warm || round == rounds {
            settle_down().await;
            println!("{}", Usage::of_this_process());
        }
    }
}

async fn round(faults: FaultInjector) {
    let service = QueueService::with_backend(Arc::new(faults.clone()));
    let service = service.storage_retry(StorageRetry::default()).connect();
    let service = service.await.expect("connecting opens nothing");
    for (probability, operation, fault) in FAULTS {
        faults.fail_sometimes(probability, operation, fault);
    }
    let listener = service
        .listener(async |order: Received<CrashOrder>| match order.attempt() {
            // One in three fails at first, in one of the ways in which a handler can.
            1 if order.name.ends_with('0') => Err("no stock".to_owned()),
            1 if order.name.ends_with('3') => panic!("no stock"),
            _ => Ok(()),
        })
        .retry(RetryPolicy::fixed(Duration::from_millis(1)))
        .poison_threshold(1000)
        .tasks(2)
        .create_queue();
    let mut events = listener.events();
    let listener = listener.start().expect("the settings are valid");
    for number in 0..ORDERS {
        let submit = || service.submit(CrashOrder::named(format!("{number}")));
        // Unknown after an answer that was lost: a duplicate.
        while submit().await.is_err() {}
    }
    let orders = service.queue::<CrashOrder>().any();
    loop {
        while let Ok(event) = events.try_recv() {
            if let ListenerEventKind::Poisoned { reason, .. } = event.kind {
                panic!("poison: {reason}");
            }
        }
        let properties = orders.properties().await.expect("it has no faults");
        if properties.approximate_count == 0 {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    faults.heal();
    let info = listener.shutdown(GRACE).await.info;
    // A delete whose answer is lost, and whose repeat panics, is carried out but not known to be.
    let settled = info.completed + info.unsettled;
    assert!(settled >= ORDERS, "{info:?}");
}

/// Waits until background work that the rounds left has ended.
async fn settle_down() {
    let mut last = Usage::of_this_process();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = Usage::of_this_process();
        if (now.threads, now.tasks, now.descriptors) >= (last.threads, last.tasks, last.descriptors)
        {
            return;
        }
        last = now;
    }
}
