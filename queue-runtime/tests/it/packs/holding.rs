//! How long a pack is held, and who has it after that.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::receive::SettleErrorKind;
use queue_runtime::testing::Fault;
use queue_runtime::{Disposition, ErrorKind, Received};
use tokio::time::sleep;

use crate::packs::support::{BOTH, Handled, Job, Marks, VISIBILITY, World, accept, depth, submit};

/// How a storage makes messages of items.
const MOVES: [(Marks, Operation); 2] = [
    (Marks::Beside, Operation::Apply),
    (Marks::InHeader, Operation::Put),
];

#[tokio::test(start_paused = true)]
async fn items_that_wait_stay_leased_by_few_renewals() {
    for marks in BOTH {
        let process = World::new(marks).process().await;
        submit(&process.service, 0..3).await;
        let held = accept(&process.service).await;
        sleep(VISIBILITY * 8).await;
        let renewals = process.faults.calls(Operation::Update);
        assert!((3..=9).contains(&renewals), "{marks:?}: {renewals}");
        assert_eq!(depth(&process.service).await, 1);
        held.complete().await.expect("still leased");
        for number in 1..3 {
            let delivery = accept(&process.service).await;
            assert_eq!(delivery.number, number);
            delivery.complete().await.expect("still leased");
        }
        assert_eq!(depth(&process.service).await, 0, "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_after_the_longest_hold_becomes_messages_of_its_own() {
    for marks in BOTH {
        let world = World::new(marks);
        let service = world.service().await;
        submit(&service, 0..50).await;
        let first = service.accept::<Job>().max_pack_hold(VISIBILITY * 2);
        let first = first.await.expect("accepts");
        let held = first.expect("a job");
        sleep(VISIBILITY * 2 + Duration::from_secs(1)).await;
        assert_eq!(
            depth(&service).await,
            50,
            "{marks:?}: one is held, and no pack is left"
        );
        let other = world.service().await;
        for number in 1..50 {
            let delivery = accept(&other).await;
            assert_eq!((delivery.number, delivery.attempt()), (number, 1));
            delivery.complete().await.expect("completed");
        }
        assert!(
            other.accept::<Job>().await.expect("accepts").is_none(),
            "it is held"
        );
        held.complete().await.expect("still leased");
        assert_eq!(depth(&other).await, 0, "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_may_have_left_its_pack_is_not_said_to_be_completed() {
    for (marks, operation) in MOVES {
        let world = World::new(marks);
        let process = world.process().await;
        submit(&process.service, 0..2).await;
        let first = process.service.accept::<Job>();
        let first = first.max_pack_hold(VISIBILITY * 2).await.expect("accepts");
        let held = first.expect("a job");
        process.faults.fail_every(operation, Fault::AnswerLost);
        sleep(VISIBILITY * 2 + Duration::from_secs(1)).await;
        process.faults.heal();
        let error = held.complete().await.expect_err("a copy of it is there");
        assert!(
            matches!(error.kind, SettleErrorKind::LeaseLost(_)),
            "{error}"
        );
        process.kill().await;
        let other = world.service().await;
        let mut seen = BTreeSet::new();
        while let Some(delivery) = other.accept::<Job>().await.expect("accepts") {
            seen.insert(delivery.number);
            delivery.complete().await.expect("completed");
        }
        assert_eq!(seen, BTreeSet::from([0, 1]), "{marks:?}");
    }
}

/// Where each item leaves by a put of its own.
#[tokio::test(start_paused = true)]
async fn an_item_that_may_have_left_is_not_hidden_by_another_that_has_not() {
    let process = World::new(Marks::InHeader).process().await;
    submit(&process.service, 0..2).await;
    let first = process.service.accept::<Job>();
    let first = first.max_pack_hold(VISIBILITY * 2).await.expect("accepts");
    let _stays = first.expect("a job");
    let held = accept(&process.service).await;
    let faults = &process.faults;
    faults.fail_next(1, Operation::Put, Fault::Refused(ErrorKind::Throttled));
    faults.fail_next(1, Operation::Put, Fault::AnswerLost);
    sleep(VISIBILITY * 2 + Duration::from_secs(1)).await;
    assert_eq!(faults.injected(Operation::Put), 2);
    let error = held.complete().await.expect_err("a copy of it is there");
    assert!(
        matches!(error.kind, SettleErrorKind::LeaseLost(_)),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_leaving_its_pack_is_not_received_from_it() {
    for (marks, operation) in MOVES {
        let world = World::new(marks);
        let process = world.process().await;
        submit(&process.service, 0..3).await;
        let first = process.service.accept::<Job>();
        let first = first.max_pack_hold(VISIBILITY * 2).await.expect("accepts");
        let held = first.expect("a job");
        process.faults.fail_every(operation, Fault::AnswerStalled);
        sleep(VISIBILITY * 2 + Duration::from_secs(1)).await;
        // Both are messages of their own, which this process does not know yet.
        let (one, other) = (&process.service, world.service().await);
        let received = [accept(one).await, accept(&other).await];
        let numbers = received.each_ref().map(|delivery| delivery.number);
        assert_eq!(numbers, [1, 2], "{marks:?}");
        process.faults.heal();
        for delivery in received {
            delivery.complete().await.expect("leased");
        }
        held.complete().await.expect("leased");
        assert_eq!(depth(&other).await, 0, "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_dropped_comes_back_alone_when_its_lease_ends() {
    for marks in BOTH {
        let service = World::new(marks).service().await;
        submit(&service, 0..5).await;
        drop(accept(&service).await);
        let second = accept(&service).await;
        assert_eq!(second.number, 1);
        second.complete().await.expect("completed");
        sleep(VISIBILITY + Duration::from_secs(1)).await;
        assert_eq!(depth(&service).await, 2, "{marks:?}: the item and its pack");
        let mut seen = Vec::new();
        while let Some(delivery) = service.accept::<Job>().await.expect("accepts") {
            seen.push((delivery.number, delivery.attempt()));
            delivery.complete().await.expect("completed");
        }
        seen.sort_unstable();
        assert_eq!(seen, [(0, 2), (2, 1), (3, 1), (4, 1)], "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_stops_gives_back_what_waits() {
    for marks in BOTH {
        let world = World::new(marks);
        let process = world.process().await;
        submit(&process.service, 0..60).await;
        let handled = Handled::default();
        let counting = handled.clone();
        let listener = process
            .service
            .listener(move |job: Received<Job>| {
                let counting = counting.clone();
                async move {
                    sleep(Duration::from_secs(1)).await;
                    counting.count(job.number);
                }
            })
            .max_in_flight(4);
        let listener = listener.start().expect("starts");
        sleep(Duration::from_millis(2_500)).await;
        let report = listener.shutdown(Duration::from_secs(10)).await;
        assert!(report.graceful && report.info.completed >= 8, "{report:?}");
        let before = report.info.completed;
        assert_eq!(
            depth(&process.service).await,
            1,
            "{marks:?}: it is not split"
        );
        let other = world.service().await;
        let delivery = accept(&other).await;
        handled.count(delivery.number);
        delivery.complete().await.expect("completed");
        assert_eq!(depth(&other).await, 1, "{marks:?}: nor is it split now");
        let counting = handled.clone();
        let rest = other.listener(move |job: Received<Job>| {
            let counting = counting.clone();
            async move {
                assert_eq!(job.attempt(), 1, "it was never handled");
                counting.count(job.number);
            }
        });
        let info = rest
            .until_empty()
            .start()
            .expect("starts")
            .drained()
            .await
            .info;
        assert_eq!(info.completed + before + 1, 60, "{marks:?}");
        assert!(handled.other_than(1, 0..60).is_empty(), "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_packs_are_held_than_there_is_room_for() {
    let world = World::new(Marks::Beside);
    let (process, other) = (world.process().await, world.service().await);
    for first in 0..20 {
        submit(&process.service, first * 50..first * 50 + 50).await;
    }
    // It asks for as many messages as it has room for, and they are packs.
    let stuck = process
        .service
        .listener(async |_: Received<Job>| pending::<()>().await);
    let stuck = stuck.max_in_flight(32).start().expect("starts");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stuck.info().in_flight, 32);
    let delivery = accept(&other).await;
    assert_eq!(delivery.attempt(), 1, "the other packs are free for others");
    assert_eq!(depth(&other).await, 20, "and were not split");
    delivery.complete().await.expect("completed");
    stuck.shutdown(Duration::ZERO).await;
    let handled = Handled::default();
    let listeners = [&process.service, &other].map(|service| {
        let counting = handled.clone();
        let listener = service.listener(move |job: Received<Job>| {
            let counting = counting.clone();
            async move {
                sleep(Duration::from_millis(10)).await;
                counting.count(job.number);
                Disposition::complete()
            }
        });
        listener.until_empty().start().expect("starts")
    });
    let mut completed = 0;
    for listener in listeners {
        let info = listener.drained().await.info;
        assert!(
            info.completed > 200,
            "the work is shared: {}",
            info.completed
        );
        completed += info.completed;
    }
    assert_eq!(completed, 999);
}
