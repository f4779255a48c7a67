//! Submissions that take the place of the message that waits, in memory and on SQLite.

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::error::{Operation, Outcome};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::service::Status;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{Delivery, ErrorKind, Message, QueueService, Received, Submitted};
use queue_tests::orders::order;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::support::{count, guarded, stop};
use crate::unique::until_settled::places;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reindexes", tracked)]
struct Reindex {
    #[message(key)]
    customer: u32,
    revision: u32,
}

async fn replace(service: &QueueService, revision: u32) -> Submitted {
    let submit = service.submit(Reindex {
        customer: 7,
        revision,
    });
    submit.replacing().await.expect("submitted")
}

/// Under an id of the application.
async fn replace_as(service: &QueueService, id: &str, revision: u32) {
    let customer = 7;
    let submit = service.submit(Reindex { customer, revision }).id(id);
    submit.replacing().await.expect("submitted");
}

async fn accept(service: &QueueService) -> Option<Delivery<Reindex>> {
    service.accept::<Reindex>().await.expect("accepts")
}

#[tokio::test]
async fn of_many_submissions_the_last_waits_and_the_others_count_as_cancelled() {
    for place in places().await {
        let service = &place.service;
        let first = replace(service, 1).await;
        let second = replace(service, 2).await;
        let delayed = service.submit(Reindex {
            customer: 7,
            revision: 3,
        });
        let delayed = delayed.delay(Duration::from_secs(3600)).replacing();
        let third = delayed.await.expect("submitted");
        let other = Reindex {
            customer: 8,
            revision: 1,
        };
        service.submit(other).replacing().await.expect("submitted");
        assert_eq!(count(service, "reindexes").await, 2);
        for replaced in [first, second] {
            let status = service.status(&replaced.id).await.expect("read");
            assert!(matches!(status, Status::Cancelled), "{status:?}");
        }
        let status = service.status(&third.id).await.expect("read");
        assert!(matches!(status, Status::Delayed { .. }), "{status:?}");

        let last = replace(service, 4).await;
        assert!(!last.duplicate);
        let mut left = Vec::new();
        while let Some(reindex) = accept(service).await {
            left.push((reindex.customer, reindex.revision));
            reindex.complete().await.expect("completed");
        }
        left.sort_unstable();
        assert_eq!(left, [(7, 4), (8, 1)]);
        assert!(!replace(service, 5).await.duplicate, "the key is free");
    }
}

#[tokio::test]
async fn a_message_that_replaces_one_of_its_own_id_is_not_cancelled() {
    for place in places().await {
        let service = &place.service;
        for revision in 1..=2 {
            replace_as(service, "customer 7", revision).await;
        }
        let last = accept(service).await.expect("the second");
        assert_eq!(last.revision, 2);
        last.reject("broken").await.expect("moved");
        let poison = service.queue::<Reindex>().poison().expect("a name");
        assert_eq!(poison.redrive().run().await.expect("run").redriven, 1);
    }
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "refunds", tracked)]
struct Refund {
    number: u32,
}

#[tokio::test]
async fn a_message_of_the_same_id_that_holds_no_key_stays() {
    for place in places().await {
        let service = &place.service;
        let refund = service.submit(Refund { number: 1 }).id("customer 7");
        refund.await.expect("submitted");
        for revision in 1..=2 {
            replace_as(service, "customer 7", revision).await;
        }
        assert_eq!(count(service, "refunds").await, 1);
        assert_eq!(count(service, "reindexes").await, 1);
    }
}

#[tokio::test]
async fn a_try_whose_answer_was_lost_is_recognised() {
    for place in places().await {
        let service = &place.service;
        replace(service, 1).await;
        place
            .faults
            .fail_next(1, Operation::Apply, Fault::AnswerLost);
        let submit = service.submit(Reindex {
            customer: 7,
            revision: 2,
        });
        let second = submit
            .replacing()
            .retry_unknown()
            .await
            .expect("tried again");
        let status = service.status(&second.id).await.expect("read");
        assert!(matches!(status, Status::Waiting { .. }), "{status:?}");
        assert_eq!(count(service, "reindexes").await, 1);
    }
}

#[tokio::test]
async fn a_message_that_was_received_is_followed_and_releases_no_key_of_others() {
    for place in places().await {
        let service = &place.service;
        replace(service, 1).await;
        let held = accept(service).await.expect("the first");
        replace(service, 2).await;
        replace(service, 3).await;
        assert_eq!(count(service, "reindexes").await, 2);
        held.complete().await.expect("completed");

        let unique = service.submit(Reindex {
            customer: 7,
            revision: 4,
        });
        let unique = unique.unique_until_settled().await.expect("looked at");
        assert!(unique.duplicate, "the third holds the key");
        let third = accept(service).await.expect("the third");
        assert_eq!(third.revision, 3);
        third.retry("not now").await.expect("put back");
        replace(service, 5).await;
        assert_eq!(count(service, "reindexes").await, 2, "it was received");
    }
}

#[tokio::test]
async fn a_lost_answer_is_told_and_leaves_one_of_the_two() {
    for place in places().await {
        let service = &place.service;
        replace(service, 1).await;
        for (fault, revision) in [(Fault::AnswerLost, 2), (Fault::RequestLost, 3)] {
            place.faults.fail_next(1, Operation::Apply, fault);
            let submit = service.submit(Reindex {
                customer: 7,
                revision,
            });
            let error = submit.replacing().await.expect_err("not known");
            assert_eq!(error.outcome(), Outcome::Unknown);
            assert_eq!(count(service, "reindexes").await, 1);
        }
        let left = accept(service).await.expect("one is left");
        assert_eq!(left.revision, 2);
        left.complete().await.expect("completed");
        assert!(!replace(service, 4).await.duplicate, "the key is free");
    }
}

async fn tell(handled: mpsc::UnboundedSender<u32>, reindex: Received<Reindex>) {
    handled.send(reindex.revision).expect("the test goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_submissions_that_race_each_is_handled_or_replaced() {
    const TASKS: u32 = 4;
    const EACH: u32 = 100;
    for place in places().await {
        let service = &place.service;
        let (sender, mut handled) = mpsc::unbounded_channel();
        let listener = service.listener_with(sender, tell).start().expect("starts");
        let tasks = (0..TASKS).map(|task| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut submitted = Vec::new();
                for number in 0..EACH {
                    let revision = task * EACH + number;
                    let submit = service.submit(Reindex {
                        customer: 7,
                        revision,
                    });
                    match submit.replacing().await {
                        Ok(done) => submitted.push((revision, done.id)),
                        Err(error) => assert_eq!(error.outcome(), Outcome::NotDone, "{error}"),
                    }
                }
                submitted
            })
        });
        let mut submitted = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            submitted.extend(task.await.expect("no panic"));
        }
        testing::drain([&listener]).await.expect("drained");
        stop(listener).await;
        let mut runs = vec![0; (TASKS * EACH) as usize];
        while let Some(revision) = guarded(handled.recv()).await.expect("in time") {
            runs[revision as usize] += 1;
        }
        let mut replaced = 0;
        for (revision, id) in &submitted {
            let status = service.status(id).await.expect("read");
            let is_replaced = matches!(status, Status::Cancelled);
            replaced += u32::from(is_replaced);
            let expected = u32::from(!is_replaced);
            assert_eq!(runs[*revision as usize], expected, "{revision}: {status:?}");
        }
        println!("{} submitted, {replaced} replaced", submitted.len());
        assert!(!submitted.is_empty());
        assert!(!replace(service, 0).await.duplicate, "the key is free");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_replace_another_is_refused() {
    let service = Arc::new(testing::service().await);
    let untracked = service.submit(order(1)).replacing().await;
    let error = untracked.expect_err("not tracked");
    assert!(
        matches!(&error.kind, SubmitErrorKind::Storage(error) if error.kind() == ErrorKind::InvalidInput)
    );
    assert!(error.to_string().contains("#[message(tracked)]"), "{error}");
}
