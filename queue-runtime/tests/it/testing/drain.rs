//! Waiting until the queues of listeners are empty.

use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::listener::ListenerPhase;
use queue_runtime::testing::{self, Fault, drain};
use queue_runtime::{Disposition, ErrorKind, Failure, FollowUp, Message, Received, RetryPolicy};
use queue_tests::MINUTE;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Cut {
    slices: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Slice {
    #[message(key)]
    number: u32,
}

async fn cut(job: Received<Cut>) -> Disposition {
    let slices = (1..=job.slices).map(|number| Slice { number });
    slices.fold(Disposition::complete(), |done, slice| done.then(&slice))
}

/// Fails each slice twice, and the third one for good.
async fn render(slice: Received<Slice>) -> Result<(), Failure> {
    match (slice.number, slice.attempt()) {
        (3, _) => Err(Failure::reject("burnt")),
        (_, 1 | 2) => Err("too hot".into()),
        _ => Ok(()),
    }
}

#[tokio::test(start_paused = true)]
async fn it_ends_once_all_queues_are_empty_together() {
    let service = testing::service().await;
    let cuts = service
        .listener(cut)
        .create_queue()
        .start()
        .expect("started");
    let retry = RetryPolicy::exponential(MINUTE, 5 * MINUTE);
    let slices = service.listener(render).retry(retry).create_queue().start();
    let slices = slices.expect("started");
    let submit = service.submit(Cut { slices: 5 }).delay(2 * MINUTE);
    submit.await.expect("submitted");

    // The slices' queue is empty at first, and counted first.
    let drained = drain([&slices, &cuts]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (5, 1));
    assert_eq!(drained.listeners[0].retried, 8);
    assert!(drained.elapsed >= 2 * MINUTE, "{:?}", drained.elapsed);
    assert_eq!(service.submitted::<Slice>().len(), 5);

    let again = drain([&slices, &cuts]).await.expect("still empty");
    assert!(
        again.elapsed < Duration::from_secs(1),
        "{:?}",
        again.elapsed
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_moves_to_a_queue_that_was_counted_is_not_missed() {
    for delay in (0..4000).step_by(250).map(Duration::from_millis) {
        let (service, faults) = testing::service_with_faults().await;
        let later = |number| FollowUp::new(&Slice { number }).with_delay(MINUTE);
        let cut =
            move |_: Received<Cut>| async move { Disposition::complete().then_follow_up(later(1)) };
        let cuts = service
            .listener(cut)
            .create_queue()
            .start()
            .expect("started");
        let slices = service
            .listener(async |_: Received<Slice>| {})
            .create_queue()
            .start();
        let slices = slices.expect("started");
        service
            .submit(Cut { slices: 1 })
            .delay(delay)
            .await
            .expect("submitted");
        let slow = Fault::Delayed(Duration::from_secs(1));
        faults.fail_every(Operation::Properties, slow);
        let drained = drain([&slices, &cuts]).await.expect("drained");
        assert_eq!(drained.completed(), 2, "delayed by {delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_does_not_exist_is_empty() {
    let service = testing::service().await;
    let cuts = service.listener(cut).start().expect("started");
    assert_eq!(drain([&cuts]).await.expect("empty").completed(), 0);
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_and_says_what_is_left() {
    let service = testing::service().await;
    let cuts = service
        .listener(cut)
        .create_queue()
        .start()
        .expect("started");
    let never = async |_: Received<Slice>| std::future::pending::<()>().await;
    let slices = service
        .listener(never)
        .handler_timeout(60 * MINUTE)
        .create_queue()
        .start();
    let slices = slices.expect("started");
    cuts.pause();
    service
        .submit_all([Cut { slices: 1 }, Cut { slices: 2 }])
        .await
        .expect("submitted");
    service
        .submit(Slice { number: 1 })
        .await
        .expect("submitted");

    let error = drain([&cuts, &slices])
        .timeout(5 * MINUTE)
        .await
        .expect_err("two are left");
    assert!(
        error.elapsed >= 5 * MINUTE && error.elapsed < 6 * MINUTE,
        "{:?}",
        error.elapsed
    );
    let [cut, slice] = &error.left[..] else {
        panic!("{error}")
    };
    assert_eq!((cut.queue.as_str(), cut.in_flight), ("cut", 0));
    assert_eq!(
        (cut.depth.as_ref().ok(), cut.phase),
        (Some(&2), ListenerPhase::Paused)
    );
    assert_eq!((slice.queue.as_str(), slice.in_flight), ("slice", 1));
    let text = error.to_string();
    let left = "queue `cut` has 2 messages, 0 of them in flight, and its listener is Paused; queue `slice` \
                has 1 message, 1 of them in flight";
    assert!(text.ends_with(left), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_cannot_be_counted_is_not_taken_for_empty() {
    let (service, faults) = testing::service_with_faults().await;
    let cuts = service
        .listener(cut)
        .create_queue()
        .start()
        .expect("started");
    drain([&cuts]).await.expect("empty");
    faults.fail_every(
        Operation::Properties,
        Fault::Refused(ErrorKind::Unreachable),
    );
    let error = drain([&cuts])
        .timeout(5 * MINUTE)
        .await
        .expect_err("not counted");
    let kind = error.left[0].depth.as_ref().expect_err("refused").kind();
    assert_eq!(kind, ErrorKind::Unreachable);
    assert!(
        error
            .to_string()
            .contains("queue `cut` was not counted (failed to"),
        "{error}"
    );
}
