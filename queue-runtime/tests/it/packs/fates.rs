//! Each item of a pack ends as it would alone.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::{Disposition, QueueService, Received, RetryPolicy};

use crate::packs::support::{BOTH, Handled, Job, Marks, VISIBILITY, World, accept, depth, submit};

const JOBS: u32 = 100;

const TIME_TO_LIVE: Duration = Duration::from_secs(600);

/// Ten jobs in a hundred meet each of these fates.
async fn handle(job: Received<Job>, handled: Handled) -> Disposition {
    let run = handled.count(job.number);
    match job.number / 10 {
        0 => Disposition::retry("it always fails"),
        1 => panic!("it always panics"),
        2 if run < 3 => Disposition::retry("it fails twice"),
        3 if run == 1 => Disposition::postpone(Duration::from_secs(90)),
        4 => pending().await,
        5 if run == 1 => pending().await,
        6 => Disposition::reject("it is wrong"),
        7 if run == 1 => {
            job.checkpoint(&job.number).await.expect("written");
            Disposition::retry("after a checkpoint")
        }
        7 => {
            let reached: Option<u32> = job.progress().expect("readable");
            assert_eq!(reached, Some(job.number), "where it was");
            Disposition::complete()
        }
        8 => Disposition::complete().then(&Job {
            number: job.number + 1_000,
        }),
        9 => Disposition::postpone(TIME_TO_LIVE),
        _ => Disposition::complete(),
    }
}

/// How all jobs ended: the runs of each, and the reason and the attempts of those that are poison.
#[derive(Debug, PartialEq, Eq)]
struct Ends {
    runs: BTreeMap<u32, u32>,
    poison: BTreeMap<u32, (String, usize)>,
    completed: usize,
    poisoned: usize,
    retried: usize,
}

async fn ends(service: &QueueService) -> Ends {
    let handled = Handled::default();
    let counting = handled.clone();
    let listener = service
        .listener(move |job: Received<Job>| handle(job, counting.clone()))
        .retry(RetryPolicy::fixed(Duration::from_secs(1)))
        .handler_timeout(VISIBILITY * 2)
        .until_empty();
    let info = listener.start().expect("starts").drained().await.info;
    assert_eq!(depth(service).await, 0);
    let poison = service.queue::<Job>().poison().expect("a name");
    let page = poison.browse(None, 256).await.expect("browsed");
    let poison = page.messages.iter().map(|message| {
        let job: Job = message.body.decode().expect("a job");
        let record = message.poison().expect("a record");
        (job.number, (record.reason.to_string(), record.attempts))
    });
    let jobs = (0..JOBS).chain(1_080..1_090);
    Ends {
        runs: jobs.map(|number| (number, handled.of(number))).collect(),
        poison: poison.collect(),
        completed: info.completed,
        poisoned: info.poisoned,
        retried: info.retried,
    }
}

#[tokio::test(start_paused = true)]
async fn every_item_ends_as_it_would_alone() {
    let alone = World::new(Marks::Beside).service().await;
    let jobs = || (0..JOBS).map(|number| Job { number });
    let submission = alone.submit_all(jobs()).time_to_live(TIME_TO_LIVE);
    submission.await.expect("submitted");
    let alone = ends(&alone).await;
    assert_eq!((alone.completed, alone.poisoned), (60, 50));
    assert_eq!(alone.poison[&99], ("expiring".to_owned(), 1));
    for marks in BOTH {
        let service = World::new(marks).service().await;
        let submission = service.submit_all(jobs()).time_to_live(TIME_TO_LIVE);
        submission.packed().await.expect("submitted");
        assert_eq!(depth(&service).await, 1, "they are one message");
        assert_eq!(ends(&service).await, alone, "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_redriven_is_handled_alone() {
    for marks in BOTH {
        let service = World::new(marks).service().await;
        submit(&service, 0..20).await;
        ends(&service).await;
        let poison = service.queue::<Job>().poison().expect("a name");
        assert_eq!(poison.redrive().run().await.expect("redriven").redriven, 20);
        assert_eq!(depth(&service).await, 20);
        let listener = service.listener(async |_: Received<Job>| ()).until_empty();
        let info = listener.start().expect("starts").drained().await.info;
        assert_eq!(info.completed, 20, "{marks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_items_with_one_key_an_idempotent_listener_handles_one() {
    let service = World::new(Marks::Beside).service().await;
    for _ in 0..3 {
        let jobs = (0..50).map(|number| Job { number });
        let submission = service.submit_all(jobs).request_id("the same").packed();
        submission.await.expect("submitted");
    }
    let handled = Handled::default();
    let counting = handled.clone();
    let listener = service
        .listener(move |job: Received<Job>| {
            let counting = counting.clone();
            async move {
                counting.count(job.number);
            }
        })
        .idempotent(service.results().expect("memory has one"))
        .until_empty();
    let info = listener.start().expect("starts").drained().await.info;
    assert_eq!((info.completed, info.duplicates), (50, 100));
    assert!(handled.other_than(1, 0..50).is_empty());
}

/// By a listener that stops, or an `accept`.
#[tokio::test(start_paused = true)]
async fn a_pack_whose_items_are_handed_back_goes_back_where_it_was() {
    let world = World::new(Marks::Beside);
    let service = world.service().await;
    submit(&service, 0..20).await;
    submit(&service, 20..40).await;
    let begun = Arc::new(tokio::sync::Notify::new());
    let seen = Arc::clone(&begun);
    let listener = service
        .listener(move |job: Received<Job>| {
            let begun = Arc::clone(&seen);
            async move {
                if job.number >= 5 {
                    begun.notify_one();
                    pending::<()>().await;
                }
            }
        })
        .max_in_flight(10)
        .start()
        .expect("starts");
    begun.notified().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    listener.shutdown(Duration::ZERO).await;
    assert_eq!(depth(&service).await, 2, "no item is a message of its own");
    let other = world.service().await;
    let first = accept(&other).await;
    assert_eq!((first.number, first.attempt()), (5, 1));
    first.release().await.expect("released");
    for number in 5..40 {
        let delivery = accept(&other).await;
        assert_eq!((delivery.number, delivery.attempt()), (number, 1));
        delivery.complete().await.expect("completed");
    }
    assert_eq!(depth(&other).await, 0);
}
