//! A pack whose receive was lost becomes messages of its own, and the storage fails now and then meanwhile.

use std::time::Duration;

use queue_runtime::backend::{NewMessage, Op, PutBackPlace};
use queue_runtime::error::Operation;
use queue_runtime::testing::Fault;
use queue_runtime::{ErrorKind, QueueName, Received};
use tokio::time::{Instant, sleep};

use crate::packs::support::{
    Handled, Job, LATER, Marks, Process, VISIBILITY, World, accept, depth, jobs, submit,
};

const ITEMS: u32 = 150;

/// After so many items that have left it, the header of a pack tells so.
const RECORDED: usize = 32;

const REFUSED: Fault = Fault::Throttled(None);

/// A storage with a pack that a process has received without leaving a record.
async fn lost_receive() -> World {
    let world = World::new(Marks::InHeader);
    let process = world.process().await;
    submit(&process.service, 0..ITEMS).await;
    let lost = accept(&process.service).await;
    assert_eq!(depth(&process.service).await, 1, "one pack has them all");
    process.kill().await;
    drop(lost);
    world
}

/// Handles all that comes, until nothing is left. Returns how often each job was handled.
async fn handle_all(process: &Process) -> Handled {
    let handled = Handled::default();
    for _ in 0..50 {
        while let Ok(Some(delivery)) = process.service.accept::<Job>().await {
            handled.count(delivery.number);
            delivery.complete().await.expect("leased");
        }
        if depth(&process.service).await == 0 {
            return handled;
        }
        sleep(LATER).await;
    }
    panic!("the pack does not come to its end");
}

/// The number of puts that were carried out.
fn puts(process: &Process, fault: &Fault) -> usize {
    let faults = &process.faults;
    match fault {
        Fault::AnswerLost => faults.calls(Operation::Put),
        _ => faults.calls(Operation::Put) - faults.injected(Operation::Put),
    }
}

#[tokio::test(start_paused = true)]
async fn each_item_is_put_once_however_many_puts_are_refused() {
    for probability in [0.01, 0.1, 0.3, 0.6] {
        let process = lost_receive().await.process().await;
        for operation in [Operation::Put, Operation::Update, Operation::Delete] {
            process
                .faults
                .fail_sometimes(probability, operation, REFUSED);
        }
        let handled = handle_all(&process).await;
        assert_eq!(puts(&process, &REFUSED), ITEMS as usize, "{probability}");
        assert_eq!(handled.other_than(1, 0..ITEMS), [], "{probability}");
    }
}

/// Twenty puts, and then a service that refuses them for as long as somebody asks.
#[tokio::test(start_paused = true)]
async fn each_receive_puts_only_what_those_before_have_not() {
    let process = lost_receive().await.process().await;
    let faults = &process.faults;
    for receive in 1..=7 {
        let done = Fault::Delayed(Duration::ZERO);
        faults.fail_next(20, Operation::Put, done);
        faults.fail_every(Operation::Put, REFUSED);
        while let Some(delivery) = process.service.accept::<Job>().await.expect("accepts") {
            delivery.complete().await.expect("leased");
        }
        assert_eq!(
            depth(&process.service).await,
            1,
            "the pack, receive {receive}"
        );
        faults.heal();
        sleep(LATER).await;
    }
    let before = faults.calls(Operation::Put);
    handle_all(&process).await;
    let last = faults.calls(Operation::Put) - before;
    assert_eq!(last, ITEMS as usize - 7 * 20);
}

/// What was received with them waits for all of them.
#[tokio::test(start_paused = true)]
async fn several_packs_that_cannot_be_split_delay_a_receive_for_no_longer_than_one() {
    let world = World::new(Marks::InHeader);
    let process = world.process().await;
    for first in [0, 10, 20] {
        submit(&process.service, first..first + 3).await;
    }
    let name = jobs(&process.service).name().clone();
    let lost = process.service.backend().receive(&name, 32, VISIBILITY);
    assert_eq!(lost.await.expect("received").len(), 9);
    process.kill().await;

    let process = world.process().await;
    process.faults.fail_every(Operation::Put, REFUSED);
    let asked = Instant::now();
    let received = process.service.backend().receive(&name, 32, VISIBILITY);
    assert_eq!(received.await.expect("received"), []);
    let elapsed = asked.elapsed();
    assert!(
        elapsed > Duration::from_secs(5),
        "it was tried again: {elapsed:?}"
    );
    assert!(elapsed <= VISIBILITY / 2, "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_costs_one_copy() {
    for probability in [0.01, 0.1, 0.5] {
        let process = lost_receive().await.process().await;
        let lost = Fault::AnswerLost;
        process
            .faults
            .fail_sometimes(probability, Operation::Put, lost.clone());
        let handled = handle_all(&process).await;
        let copies = process.faults.injected(Operation::Put);
        assert_eq!(puts(&process, &lost), ITEMS as usize + copies);
        let runs: u32 = (0..ITEMS).map(|number| handled.of(number)).sum();
        assert_eq!(runs as usize, ITEMS as usize + copies, "{probability}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_refused_for_good_costs_the_others_nothing() {
    let process = lost_receive().await.process().await;
    let refused = Fault::Refused(ErrorKind::InvalidInput);
    process.faults.fail_next(3, Operation::Put, refused.clone());
    let handled = handle_all(&process).await;
    assert_eq!(puts(&process, &refused), ITEMS as usize);
    assert_eq!(handled.other_than(1, 0..ITEMS), []);
}

#[tokio::test(start_paused = true)]
async fn a_crash_while_a_pack_is_split_repeats_what_was_not_recorded() {
    let world = lost_receive().await;
    let crashed = world.process().await;
    let done = Fault::Delayed(Duration::ZERO);
    crashed.faults.fail_next(60, Operation::Put, done);
    crashed.faults.fail_every(Operation::Put, Fault::Stalled);
    tokio::select! {
        accepted = crashed.service.accept::<Job>() => panic!("{accepted:?}"),
        () = crashed.faults.until_injected(61, Operation::Put) => {}
    }
    crashed.kill().await;
    let process = world.process().await;
    handle_all(&process).await;
    assert_eq!(puts(&process, &REFUSED), ITEMS as usize - RECORDED);
}

/// Received again, the pack would repeat what its header does not tell.
#[tokio::test(start_paused = true)]
async fn a_pack_that_is_empty_is_deleted_although_the_storage_refuses_at_first() {
    for fault in [REFUSED, Fault::RequestLost, Fault::AnswerLost] {
        let split = lost_receive().await.process().await;
        split.faults.fail_next(1, Operation::Delete, fault.clone());
        drop(accept(&split.service).await);
        assert_eq!(depth(&split.service).await, ITEMS as usize, "{fault:?}");

        let process = World::new(Marks::InHeader).process().await;
        submit(&process.service, 0..2).await;
        accept(&process.service)
            .await
            .complete()
            .await
            .expect("completed");
        let last = accept(&process.service).await;
        process
            .faults
            .fail_next(1, Operation::Delete, fault.clone());
        last.retry("later").await.expect("put back");
        assert_eq!(depth(&process.service).await, 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pack_that_is_given_back_tells_what_was_done_although_the_storage_refuses_at_first() {
    let world = World::new(Marks::InHeader);
    let process = world.process().await;
    submit(&process.service, 0..20).await;
    let handled = Handled::default();
    let counting = handled.clone();
    let listener = process.service.listener(move |job: Received<Job>| {
        let counting = counting.clone();
        async move {
            sleep(Duration::from_secs(1)).await;
            counting.count(job.number);
        }
    });
    let listener = listener.max_in_flight(4).start().expect("starts");
    sleep(Duration::from_millis(2_500)).await;
    process.faults.fail_next(1, Operation::Update, REFUSED);
    listener.shutdown(Duration::from_secs(10)).await;
    assert_eq!(process.faults.injected(Operation::Update), 1);
    sleep(LATER).await;
    let other = world.process().await;
    while let Some(delivery) = other.service.accept::<Job>().await.expect("accepts") {
        assert_eq!(delivery.attempt(), 1);
        handled.count(delivery.number);
        delivery.complete().await.expect("completed");
    }
    assert_eq!(handled.other_than(1, 0..20), []);
    assert_eq!(puts(&other, &REFUSED), 0, "it was not split");
}

/// An item leaves, and what was to follow in the same call fails.
#[tokio::test(start_paused = true)]
async fn an_item_that_has_left_does_not_leave_again_when_the_rest_is_repeated() {
    let process = World::new(Marks::InHeader).process().await;
    submit(&process.service, 0..3).await;
    let (queue, backend) = (jobs(&process.service), process.service.backend());
    let received = backend.receive(queue.name(), 1, VISIBILITY).await;
    let item = received.expect("received").remove(0);
    let leave = Op::PutBack {
        queue: queue.name().clone(),
        id: item.id,
        receipt: item.receipt,
        place: PutBackPlace::After(Duration::ZERO),
        body: None,
    };
    let follows = Op::Put {
        queue: QueueName::from_static("missing"),
        message: NewMessage::new("{}"),
    };
    for _ in 0..2 {
        let applied = backend
            .apply([leave.clone(), follows.clone()].into_iter().collect())
            .await;
        let failed = applied.expect_err("there is no such queue");
        assert_eq!((failed.index, failed.completed.len()), (1, 1));
        assert_eq!(depth(&process.service).await, 2, "the pack and the item");
    }
}
