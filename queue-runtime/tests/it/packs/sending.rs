//! What is packed, and what its sender is told.

use std::time::Duration;

use queue_runtime::error::{Operation, Outcome};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::testing::Fault;
use queue_runtime::{ErrorKind, Message, Received};
use queue_tests::incompressible;
use serde::{Deserialize, Serialize};

use crate::packs::support::{Job, Marks, World, accept, depth, submit};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "jobs", poison_threshold = 1)]
struct Once {
    number: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "jobs", wire = "bare")]
struct Bare {
    number: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "texts")]
struct Text {
    text: String,
}

#[tokio::test(start_paused = true)]
async fn items_keep_their_ids_their_order_and_their_envelopes() {
    let service = World::new(Marks::Beside).service().await;
    let jobs = (0..200).map(|number| Job { number });
    let submitted = service
        .submit_all(jobs)
        .request_id("import-7")
        .packed()
        .await;
    let submitted = submitted.expect("submitted");
    assert_eq!((submitted.len(), depth(&service).await), (200, 1));
    for (number, one) in (0..).zip(&submitted) {
        let delivery = accept(&service).await;
        assert_eq!(
            (delivery.number, &delivery.envelope().id),
            (number, &one.id)
        );
        assert_eq!(delivery.envelope().request_id.as_str(), "import-7");
        delivery.complete().await.expect("completed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_can_be_packed_always() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(queue = "readings", packed)]
    struct Reading(u32);

    let service = World::new(Marks::Beside).service().await;
    let readings = service.queue::<Reading>();
    let submission = service.submit_all((0..100).map(Reading));
    assert_eq!(submission.await.expect("submitted").len(), 100);
    let properties = readings.any().properties().await.expect("properties");
    assert_eq!(properties.approximate_count, 1);
    service.submit(Reading(100)).await.expect("submitted");
    let listener = service.listener(async |_: Received<Reading>| ());
    let listener = listener.until_empty().start().expect("starts");
    assert_eq!(listener.drained().await.info.completed, 101);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_in_a_pack_is_submitted_by_itself_or_refused() {
    let process = World::new(Marks::Beside).process().await;
    let service = &process.service;
    let jobs = (0..10).map(|number| Once { number });
    let submission = service.submit_all(jobs).packed();
    assert_eq!(submission.await.expect("submitted").len(), 10);
    assert_eq!(depth(service).await, 10, "one attempt each");
    let refused = service.submit_all([Bare { number: 1 }]).packed().await;
    let refused = refused.expect_err("bare");
    let SubmitErrorKind::Storage(error) = &refused.kind else {
        panic!("{refused}");
    };
    assert_eq!(
        (error.kind(), refused.rest.len()),
        (ErrorKind::InvalidInput, 1)
    );
    let jobs = (10..12).map(|number| Job { number });
    let delayed = service.submit_all(jobs).delay(Duration::from_secs(60));
    delayed.packed().await.expect("submitted");
    submit(service, [12]).await;
    assert_eq!(depth(service).await, 12);
    // Each is larger than a body, so its payload is not in it; and those between fill several packs.
    let large = |length| Text {
        text: incompressible(length),
    };
    let texts = [100, 200_000, 100, 100, 20_000, 20_000, 20_000, 100].map(large);
    let submission = service.submit_all(texts.clone()).packed();
    assert_eq!(submission.await.expect("submitted").len(), 8);
    for text in texts {
        let accepted = service.accept::<Text>().await.expect("accepts");
        let delivery = accepted.expect("a text");
        assert!(*delivery.message() == text, "another text");
        delivery.complete().await.expect("completed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pack_is_submitted_or_not_as_a_whole() {
    let process = World::new(Marks::Beside).process().await;
    let texts: Vec<Text> = (0..30)
        .map(|_| Text {
            text: incompressible(10_000),
        })
        .collect();
    let queue = process.service.any_queue("texts").expect("a name");
    queue.create().await.expect("created");
    let lost = Fault::AnswerLost;
    process.faults.fail_next(1, Operation::Apply, lost);
    let failed = process.service.submit_all(texts.clone()).packed().await;
    let failed = failed.expect_err("no answer");
    assert_eq!(failed.outcome(), Outcome::Unknown);
    assert_eq!((failed.submitted.len(), failed.rest.len()), (0, 30));
    let ids = failed.rest.iter().filter(|(id, _)| id.is_some());
    assert_eq!(ids.count(), 30);
    let properties = queue.properties().await;
    let depth = properties.expect("properties").approximate_count;
    assert!((2..30).contains(&depth), "{depth} packs");
    let mut stored = 0;
    let mut mark = None;
    loop {
        let page = queue.browse(mark.as_ref(), 7).await.expect("browsed");
        stored += page.messages.len();
        mark = page.next;
        if mark.is_none() {
            break;
        }
    }
    assert_eq!(stored, 30);
}
