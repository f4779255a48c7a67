//! Submissions that take the place of the message that waits, in a database.

use queue_runtime::Message;
use queue_runtime::service::Status;
use serde::{Deserialize, Serialize};

use crate::bank::Bank;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reindexes", tracked)]
struct Reindex {
    #[message(key)]
    customer: u32,
    revision: u32,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_a_key_waits_or_follows_the_one_that_was_received() {
    let service = Bank::open().await.other_service().await;
    let replace = async |revision| {
        let submit = service.submit(Reindex {
            customer: 7,
            revision,
        });
        submit.replacing().await.expect("submitted")
    };
    let accept = async || {
        let accepted = service.accept::<Reindex>().await.expect("accepts");
        accepted.expect("a message")
    };
    let first = replace(1).await;
    replace(2).await;
    let status = service.status(&first.id).await.expect("read");
    assert!(matches!(status, Status::Cancelled), "{status:?}");
    let held = accept().await;
    assert_eq!(held.revision, 2);
    replace(3).await;
    replace(4).await;
    held.complete().await.expect("completed");

    let unique = service.submit(Reindex {
        customer: 7,
        revision: 5,
    });
    let unique = unique.unique_until_settled().await.expect("looked at");
    assert!(unique.duplicate, "the fourth holds the key");
    let last = accept().await;
    assert_eq!(last.revision, 4);
    last.complete().await.expect("completed");
    assert!(!replace(6).await.duplicate, "the key is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn submissions_that_race_leave_one() {
    let service = Bank::open().await.other_service().await;
    let submissions = (0..8).map(|task| {
        let service = service.clone();
        tokio::spawn(async move {
            for number in 0..10 {
                let reindex = Reindex {
                    customer: 7,
                    revision: task * 10 + number,
                };
                service
                    .submit(reindex)
                    .replacing()
                    .await
                    .expect("submitted");
            }
        })
    });
    for submission in submissions.collect::<Vec<_>>() {
        submission.await.expect("no panic");
    }
    let queue = service.queue::<Reindex>().any();
    let properties = queue.properties().await.expect("read");
    assert_eq!(properties.approximate_count, 1);
}
