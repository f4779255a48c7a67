use mosaic::storage::blob::BlobName;
use mosaic::workflow::client::Job;
use mosaic::workflow::messages::ImageOutcome;
use mosaic::workflow::roles::{Settings, broker, controller, processor};
use queue_runtime::Message;
use serde::{Deserialize, Serialize};

use crate::workflow::support::{Fixture, GUARD, job, until};

/// Runs a job that fails, and returns the reason that the client gets.
async fn reason(job: Job) -> String {
    let fixture = Fixture::new().await;
    let mut roles = fixture.start(1);
    fixture.submit(job).await;
    let reason = fixture.reason().await;
    fixture.drained().await;
    assert_eq!(fixture.poison().await, 1);
    roles.shutdown(GUARD).await;
    reason
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_picture() {
    let mut image = job().image;
    image.truncate(image.len() / 2);
    let found = reason(Job { image, ..job() }).await;
    assert!(
        found.contains("the picture is damaged: unexpected end"),
        "{found}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_layouts() {
    for (tile_size, across, slices, expected) in [
        (65, 24, 4, "the tile size is 65 pixels; 1 to 64 are allowed"),
        (
            4,
            24,
            1001,
            "the number of slices is 1001; 1 to 1000 are allowed",
        ),
    ] {
        let job = Job {
            tile_size,
            across,
            slices,
            ..job()
        };
        assert_eq!(reason(job).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_slices_that_fail_are_answered_once() {
    let (fixture, settings) = (Fixture::new().await, Settings::default());
    let _controller = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    fixture.requested(4).await;
    for sequence in 0..4 {
        let slice = BlobName::slice(&fixture.request, sequence);
        fixture.replace(&slice, "junk").await;
    }
    let _processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    until("the slices are handled", async || {
        let waiting = fixture.count("slicerequest").await + fixture.count("sliceresponse").await;
        (waiting == 0).then_some(())
    })
    .await;
    assert_eq!(fixture.count("imageresponse").await, 1);
    let _broker = broker(&fixture.service, &fixture.store, &settings);
    let found = fixture.reason().await;
    assert!(
        found.contains("of 4: the file is neither PNG nor JPEG"),
        "{found}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rendered_slice_that_cannot_be_joined() {
    let (fixture, settings) = (Fixture::new().await, Settings::default());
    let _broker = broker(&fixture.service, &fixture.store, &settings);
    let mut first = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    fixture.requested(4).await;
    first.shutdown(GUARD).await;

    let _processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    for sequence in 0..4 {
        let blob = BlobName::rendered(&fixture.request, sequence);
        until("the slice is rendered", async || {
            fixture
                .store
                .exists(&blob)
                .await
                .expect("the store answers")
                .then_some(())
        })
        .await;
    }
    let blob = BlobName::rendered(&fixture.request, 1);
    fixture.replace(&blob, "junk").await;
    let _second = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    let found = fixture.reason().await;
    let expected = "the slices could not be joined: slice 2 cannot be used: ";
    assert!(found.starts_with(expected), "{found}");
    fixture.drained().await;
}

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(kind = "stranger", queue = "slicerequest")]
struct Stranger {
    name: String,
}

async fn submit_stranger(fixture: &Fixture) {
    let stranger = Stranger {
        name: "nobody".to_owned(),
    };
    let submission = fixture.service.submit(stranger);
    let submission = submission.request_id(fixture.request.as_str());
    submission.await.expect("submitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_request_of_another_kind() {
    let fixture = Fixture::new().await;
    let _roles = fixture.start(1);
    submit_stranger(&fixture).await;
    let found = fixture.reason().await;
    assert!(
        found.starts_with("a slice request could not be handled: undecodable: "),
        "{found}"
    );
    assert!(found.contains("\"stranger\""), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_comes_after_the_mosaic_changes_nothing() {
    let fixture = Fixture::new().await;
    let _roles = fixture.start(1);
    fixture.submit(job()).await;
    fixture.mosaic().await;
    submit_stranger(&fixture).await;
    until("the stranger is on the poison queue", async || {
        (fixture.poison().await == 1).then_some(())
    })
    .await;
    fixture.drained().await;
    assert!(matches!(fixture.outcome().await, ImageOutcome::Done { .. }));
}
