//! Redrives on storage that fails for a while: what was certainly not done is repeated, and nothing else.

use std::sync::Arc;

use queue_runtime::envelope::Envelope;
use queue_runtime::envelope::PoisonRecord;
use queue_runtime::error::Operation;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{ErrorKind, QueueService};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use tokio::time::{Instant, sleep};

use crate::support::count;
use crate::support::remote::Remote;
use crate::support::storage::Storage;

const UNREACHABLE: Fault = Fault::Refused(ErrorKind::Unreachable);

/// Four orders on the poison queue, of which a redrive with the filter [`is_even`] leaves two.
async fn poisoned(service: &QueueService) {
    for number in 0..4 {
        let submit = service.submit(order(number)).id(number.to_string());
        submit.await.expect("submitted");
        let order = service.accept::<Order>().await.expect("no error");
        let rejected = order.expect("an order").reject("no").await;
        rejected.expect("moved to the poison queue");
    }
}

fn is_even(envelope: &Envelope, _: &PoisonRecord) -> bool {
    matches!(envelope.id.as_str(), "0" | "2")
}

async fn remote() -> (QueueService, FaultInjector) {
    let (_, faults) = Storage::new().connect().await;
    let service = QueueService::with_backend(Arc::new(Remote::over(faults.clone())))
        .clock(Arc::new(TokioClock::new()))
        .on_current_runtime();
    (service.connect().await.expect("connects"), faults)
}

/// In which an `apply` is one step, with and without browsing, and one that carries out its operations in order.
async fn storages() -> [(QueueService, FaultInjector); 3] {
    let browsable = Storage::new().browsable().connect().await;
    [browsable, Storage::new().connect().await, remote().await]
}

async fn counts(service: &QueueService) -> (usize, usize) {
    let (orders, poison) = ("orders", "orders-poison");
    (count(service, orders).await, count(service, poison).await)
}

#[tokio::test(start_paused = true)]
async fn what_was_not_done_is_repeated() {
    let operations = [
        Operation::Properties,
        Operation::Browse,
        Operation::Receive,
        Operation::Apply,
        Operation::Put,
        Operation::Delete,
        Operation::Update,
    ];
    let throttled = Fault::Throttled(Some(3 * SECOND));
    for fault in [UNREACHABLE, throttled] {
        let mut injected = [0; 7];
        for (service, faults) in storages().await {
            poisoned(&service).await;
            for operation in operations {
                faults.fail_next(2, operation, fault.clone());
            }
            let redrive = service
                .any_queue("orders-poison")
                .expect("a name")
                .redrive();
            let redriven = redrive.filter(is_even).run().await.expect("redriven");
            assert_eq!((redriven.redriven, redriven.filtered), (2, 2));
            assert_eq!((redriven.duplicates, redriven.taken), (0, 0));
            assert_eq!(counts(&service).await, (2, 2));
            let poison = service.any_queue("orders-poison").expect("a name");
            assert_eq!(poison.peek(4).await.expect("peeked").len(), 2);
            for (injected, operation) in injected.iter_mut().zip(operations) {
                *injected += faults.injected(operation);
            }
        }
        // On each storage that the operation is used on.
        assert_eq!(injected, [6, 2, 4, 4, 2, 2, 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_repeats_what_it_asks() {
    for (service, faults) in storages().await {
        poisoned(&service).await;
        for operation in [Operation::Properties, Operation::Browse, Operation::Peek] {
            faults.fail_next(1, operation, Fault::AnswerLost);
            faults.fail_next(1, operation, UNREACHABLE);
        }
        let redrive = service
            .any_queue("orders-poison")
            .expect("a name")
            .redrive();
        let planned = redrive.dry_run().await.expect("planned");
        assert_eq!((planned.redriven, planned.unseen), (4, 0));
        assert_eq!(faults.history().len(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_done_is_not_repeated() {
    for (service, faults) in storages().await {
        poisoned(&service).await;
        let before = faults.calls(Operation::Put);
        for operation in [Operation::Apply, Operation::Put] {
            faults.fail_next(1, operation, Fault::AnswerLost);
        }
        let redrive = service
            .any_queue("orders-poison")
            .expect("a name")
            .redrive();
        let stopped = redrive.run().await.expect_err("no answer");
        assert_eq!(stopped.error.kind(), ErrorKind::Unreachable);
        let moved = count(&service, "orders").await;
        assert_eq!(stopped.unknown, moved, "those of the step");
        assert!(faults.calls(Operation::Put) <= before + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_as_the_policy_says_and_leaves_everything() {
    for (service, faults) in storages().await {
        poisoned(&service).await;
        for operation in [Operation::Apply, Operation::Put] {
            faults.fail_every(operation, UNREACHABLE);
        }
        let started = Instant::now();
        let redrive = service
            .any_queue("orders-poison")
            .expect("a name")
            .redrive();
        let stopped = redrive.run().await.expect_err("unreachable");
        assert_eq!(stopped.error.kind(), ErrorKind::Unreachable);
        assert_eq!((stopped.so_far.redriven, stopped.unknown), (0, 0));
        let tries = faults.injected(Operation::Apply) + faults.injected(Operation::Put);
        assert_eq!(tries, 8, "the default of the service");
        assert!(started.elapsed() < 30 * SECOND);
        // Handed back in the background.
        sleep(SECOND).await;
        assert_eq!(counts(&service).await, (0, 4));
        let poison = service.any_queue("orders-poison").expect("a name");
        assert_eq!(poison.peek(4).await.expect("peeked").len(), 4);
    }
}

/// Another redrive may have received the others meanwhile.
#[tokio::test(start_paused = true)]
async fn nothing_is_put_after_the_end_of_its_lease() {
    let (service, faults) = remote().await;
    poisoned(&service).await;
    let before = faults.calls(Operation::Put);
    faults.fail_next(1, Operation::Put, Fault::Delayed(61 * SECOND));
    let redrive = service
        .any_queue("orders-poison")
        .expect("a name")
        .redrive();
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.unseen), (1, 3));
    assert_eq!(faults.calls(Operation::Put), before + 1);
    assert_eq!(counts(&service).await, (1, 3));
    let redriven = redrive.run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.unseen), (3, 0));
}

/// The queue to put them on is missing, and its creation fails for a while.
#[tokio::test(start_paused = true)]
async fn a_missing_queue_is_created() {
    for (service, faults) in storages().await {
        poisoned(&service).await;
        let orders = service.any_queue("orders").expect("a name");
        orders.delete().await.expect("deleted");
        let before = faults.calls(Operation::CreateQueue);
        faults.fail_next(2, Operation::CreateQueue, UNREACHABLE);
        let redrive = service
            .any_queue("orders-poison")
            .expect("a name")
            .redrive();
        assert_eq!(redrive.run().await.expect("redriven").redriven, 4);
        assert_eq!(counts(&service).await, (4, 0));
        assert_eq!(faults.calls(Operation::CreateQueue), before + 3);
    }
}
