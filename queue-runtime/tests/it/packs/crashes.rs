//! A process ends while it holds a pack.

use std::future::pending;

use queue_runtime::Received;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::packs::support::{BOTH, Handled, Job, Marks, VISIBILITY, World, accept, depth, submit};

#[tokio::test(start_paused = true)]
async fn what_was_settled_is_not_repeated_where_marks_are_beside_the_message() {
    let world = World::new(Marks::Beside);
    let process = world.process().await;
    submit(&process.service, 0..10).await;
    for _ in 0..4 {
        let delivery = accept(&process.service).await;
        delivery.complete().await.expect("completed");
    }
    let held = accept(&process.service).await;
    assert_eq!((held.number, held.attempt()), (4, 1));
    process.kill().await;
    drop(held);
    let other = world.service().await;
    assert_eq!(depth(&other).await, 1);
    for number in 4..10 {
        let delivery = accept(&other).await;
        assert_eq!((delivery.number, delivery.attempt()), (number, 1));
        delivery.complete().await.expect("completed");
    }
    assert_eq!(depth(&other).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_crash_repeats_the_items_since_the_last_renewal_where_marks_are_in_the_header() {
    let world = World::new(Marks::InHeader);
    let process = world.process().await;
    submit(&process.service, 0..10).await;
    for _ in 0..4 {
        let delivery = accept(&process.service).await;
        delivery.complete().await.expect("completed");
    }
    sleep(VISIBILITY * 2).await;
    let unwritten = accept(&process.service).await;
    assert_eq!(unwritten.number, 4);
    unwritten.complete().await.expect("completed");
    process.kill().await;
    let other = world.service().await;
    for number in 4..10 {
        let delivery = accept(&other).await;
        assert_eq!((delivery.number, delivery.attempt()), (number, 1));
        delivery.complete().await.expect("completed");
    }
    assert_eq!(depth(&other).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_item_that_ends_each_process_costs_the_others_nothing() {
    for marks in BOTH {
        let world = World::new(marks);
        submit(&world.service().await, 0..100).await;
        let handled = Handled::default();
        let mut crashes = 0;
        loop {
            let process = world.process().await;
            let (counting, (crash, mut crashed)) = (handled.clone(), mpsc::unbounded_channel());
            let listener = process
                .service
                .listener(move |job: Received<Job>| {
                    let counting = counting.clone();
                    let crash = crash.clone();
                    async move {
                        if job.number == 13 {
                            crash.send(()).expect("the test waits");
                            pending::<()>().await;
                        }
                        assert_eq!(job.attempt(), 1, "the crashes are none of its attempts");
                        counting.count(job.number);
                    }
                })
                .max_in_flight(1)
                .until_empty();
            let listener = listener.start().expect("starts");
            tokio::select! {
                drained = listener.drained() => {
                    assert_eq!(drained.info.poisoned, 1, "{marks:?}");
                    break;
                }
                _ = crashed.recv() => crashes += 1,
            }
            drop(listener);
            process.kill().await;
            assert!(crashes < 20, "{marks:?}: it is never put aside");
        }
        let service = world.service().await;
        assert_eq!(depth(&service).await, 0, "{marks:?}");
        let repeated = handled.other_than(1, 0..100);
        match marks {
            Marks::Beside => assert_eq!(repeated, [(13, 0)]),
            // Nothing was renewed before the first crash.
            Marks::InHeader => {
                let again = (0..13).map(|number| (number, 2)).chain([(13, 0)]);
                assert_eq!(repeated, again.collect::<Vec<_>>());
            }
        }
        let poison = service.queue::<Job>().poison().expect("a name");
        let page = poison.browse(None, 10).await.expect("browsed");
        let job: Job = page.messages[0].body.decode().expect("a job");
        assert_eq!((page.messages.len(), job.number), (1, 13), "{marks:?}");
    }
}
