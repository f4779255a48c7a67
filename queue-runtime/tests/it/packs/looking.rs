//! Items on pages, in peeks and in the figures of a queue.

use queue_runtime::wire::Body;
use queue_runtime::{Message, testing};

use crate::packs::support::{BOTH, Job, World, accept, depth, jobs, submit};

#[tokio::test(start_paused = true)]
async fn pages_show_each_item_that_is_left_once() {
    for marks in BOTH {
        let service = World::new(marks).service().await;
        service.submit(Job { number: 0 }).await.expect("submitted");
        submit(&service, 1..41).await;
        service.submit(Job { number: 41 }).await.expect("submitted");
        submit(&service, 42..100).await;
        assert_eq!(depth(&service).await, 4);
        for max in [1, 7, 40, 256] {
            let (mut seen, mut mark) = (Vec::new(), None);
            loop {
                let page = jobs(&service)
                    .browse(mark.as_ref(), max)
                    .await
                    .expect("browsed");
                assert!((1..=max).contains(&page.messages.len()));
                seen.extend(page.messages.iter().map(|one| number(&one.body)));
                mark = page.next;
                if mark.is_none() {
                    break;
                }
            }
            assert_eq!(seen, (0..100).collect::<Vec<_>>(), "{marks:?}, {max}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peek_shows_items() {
    for marks in BOTH {
        let service = World::new(marks).service().await;
        submit(&service, 0..20).await;
        let peeked = service.backend().peek(&Job::TYPE.queue(), 5).await;
        let peeked = peeked.expect("peeked");
        let numbers = peeked
            .iter()
            .map(|one| number(&Body::read(&one.body, 10_000)));
        assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        accept(&service).await.complete().await.expect("completed");
        assert_eq!(depth(&service).await, 1, "a pack counts as one");
    }
}

#[tokio::test(start_paused = true)]
async fn a_test_sees_each_packed_message_as_submitted_once() {
    let service = testing::service().await;
    submit(&service, 0..30).await;
    let jobs = |service: &testing::TestService| -> Vec<u32> {
        let submitted = service.submitted::<Job>();
        submitted.iter().map(|job| job.number).collect()
    };
    assert_eq!(jobs(&service), (0..30).collect::<Vec<_>>());
    let delivery = accept(&service).await;
    delivery.release().await.expect("put back, out of its pack");
    assert_eq!(jobs(&service), (0..30).collect::<Vec<_>>());
}

fn number(body: &Body) -> u32 {
    body.decode::<Job>().expect("a job").number
}
