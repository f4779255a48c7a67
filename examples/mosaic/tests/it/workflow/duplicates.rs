use mosaic::storage::blob::BlobName;
use mosaic::workflow::messages::{
    ImageOutcome, ImageRequest, ImageResponse, SliceOutcome, SliceRequest, SliceResponse,
};
use mosaic::workflow::roles::{Settings, broker, controller, processor};
use queue_runtime::Message;

use crate::workflow::support::{Fixture, GUARD, job, until};

async fn again<M: Message>(fixture: &Fixture, message: M) {
    let submission = fixture
        .service
        .submit(message)
        .request_id(fixture.request.as_str());
    submission.await.expect("submitted");
}

/// Submits every request message again.
async fn all_again(fixture: &Fixture) {
    let asked: ImageRequest = fixture.plan().await.asked;
    for sequence in 0..4 {
        let request = SliceRequest {
            slice_sequence: sequence,
            slice: BlobName::slice(&fixture.request, sequence),
            library: asked.library,
            tile_size: asked.tile_size,
            tint: asked.tint,
        };
        again(fixture, request).await;
    }
    again(fixture, asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_messages_produce_one_response() {
    let fixture = Fixture::new().await;
    // Two of every role, so that they race.
    let (mut one, mut other) = (fixture.start(2), fixture.start(2));
    fixture.submit(job()).await;
    fixture.submit(job()).await;
    all_again(&fixture).await;
    let mosaic = fixture.mosaic().await;
    fixture.drained().await;
    let outcome = fixture.outcome().await;

    all_again(&fixture).await;
    fixture.submit(job()).await;
    let rendered = SliceOutcome::Rendered {
        blob: BlobName::rendered(&fixture.request, 3),
        by: String::new(),
        millis: 0,
    };
    for outcome in [
        rendered,
        SliceOutcome::Failed {
            reason: "late".to_owned(),
        },
    ] {
        again(
            &fixture,
            SliceResponse {
                slice_sequence: 3,
                outcome,
                attempts: 9,
            },
        )
        .await;
    }
    let ImageOutcome::Done { image, figures } = fixture.outcome().await else {
        panic!("it failed")
    };
    let done = ImageResponse::done(&fixture.request, image, figures);
    again(&fixture, done).await;
    again(
        &fixture,
        ImageResponse::failed(&fixture.request, "late".to_owned()),
    )
    .await;
    fixture.drained().await;

    assert_eq!(fixture.outcome().await, outcome);
    assert!(fixture.mosaic().await == mosaic);
    assert_eq!(fixture.poison().await, 0);
    one.shutdown(GUARD).await;
    other.shutdown(GUARD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_repetition_of_a_request_is_ignored() {
    let (fixture, settings) = (Fixture::new().await, Settings::default());
    let _broker = broker(&fixture.service, &fixture.store, &settings);
    let _controller = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    fixture.requested(4).await;
    let asked = fixture.plan().await.asked;
    let tile_size = 8;
    again(&fixture, ImageRequest { tile_size, ..asked }).await;
    fixture.requested(8).await;
    let _processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.mosaic().await;
    fixture.drained().await;
    assert_eq!(fixture.plan().await.asked.tile_size, 4);
    assert_eq!(fixture.poison().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_messages_do_not_miss_the_blobs_of_a_finished_request() {
    let fixture = Fixture::new().await;
    let mut roles = fixture.start(2);
    fixture.submit(job()).await;
    fixture.mosaic().await;
    fixture.drained().await;
    let discarded = fixture.client.discard(&fixture.request).await;
    discarded.expect("discarded");
    all_again(&fixture).await;
    fixture.drained().await;
    assert_eq!(fixture.poison().await, 0);
    roles.shutdown(GUARD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_duplicates_of_all_slices_one_joins() {
    let fixture = Fixture::new().await;
    let settings = Settings {
        tasks: 16,
        ..Settings::default()
    };
    let mut planning = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    fixture.requested(4).await;
    planning.shutdown(GUARD).await;
    let mut processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    until("the slices are rendered", async || {
        (fixture.count("slicerequest").await == 0).then_some(())
    })
    .await;
    processor.shutdown(GUARD).await;
    for sequence in (0..4).cycle().take(40) {
        let blob = BlobName::rendered(&fixture.request, sequence);
        let duplicate = SliceResponse {
            slice_sequence: sequence,
            outcome: SliceOutcome::Rendered {
                blob,
                by: String::new(),
                millis: 0,
            },
            attempts: 1,
        };
        again(&fixture, duplicate).await;
    }

    // Two controllers, so that they race. Without a broker, no handler learns that the request is answered.
    let controllers = [(), ()]
        .map(|()| controller(&fixture.service, &fixture.store, &settings).expect("it starts"));
    until("the responses are handled", async || {
        (fixture.count("sliceresponse").await == 0).then_some(())
    })
    .await;
    assert_eq!(fixture.count("imageresponse").await, 1, "of 44 handlers");
    let _broker = broker(&fixture.service, &fixture.store, &settings);
    fixture.mosaic().await;
    fixture.drained().await;
    assert_eq!(fixture.poison().await, 0);
    drop(controllers);
}
