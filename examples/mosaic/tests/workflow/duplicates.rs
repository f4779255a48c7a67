use std::time::Instant;

use mosaic::blob::BlobName;
use mosaic::client::{ClientError, Job};
use mosaic::messages::{
    ImageOutcome, ImageRequest, ImageResponse, SliceOutcome, SliceRequest, SliceResponse,
};
use mosaic::picture::encode_png;
use mosaic::roles::{Settings, broker, controller, processor};
use queue_runtime::Message;

use crate::support::{GUARD, Place, job};

async fn again<M: Message>(place: &Place, message: M) {
    let submission = place
        .service
        .submit(message)
        .request(place.request.as_str());
    submission.await.expect("submitted");
}

/// Every message of the request, as somebody would repeat it.
async fn all_again(place: &Place) {
    let asked: ImageRequest = place.plan().await.asked;
    for sequence in 0..4 {
        let request = SliceRequest {
            slice_sequence: sequence,
            slice: BlobName::slice(&place.request, sequence),
            library: asked.library,
            tile_size: asked.tile_size,
            tint: asked.tint,
        };
        again(place, request).await;
    }
    again(place, asked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_on_the_way_come_to_one_response() {
    let place = Place::new().await;
    // Two of everything, so that they race.
    let (one, other) = (place.start(2), place.start(2));
    place.submit(job()).await;
    place.submit(job()).await;
    all_again(&place).await;
    let begun = Instant::now();
    let mosaic = place.mosaic().await;
    place.drained().await;
    assert!(begun.elapsed() < GUARD);
    let record = place
        .ledger
        .response(&place.request)
        .await
        .expect("readable");

    all_again(&place).await;
    place.submit(job()).await;
    let rendered = SliceOutcome::Rendered {
        blob: BlobName::rendered(&place.request, 3),
    };
    for outcome in [
        rendered,
        SliceOutcome::Failed {
            reason: "late".to_owned(),
        },
    ] {
        again(
            &place,
            SliceResponse {
                slice_sequence: 3,
                outcome,
                attempts: 9,
            },
        )
        .await;
    }
    let ImageOutcome::Done { figures, .. } = place.outcome().await else {
        panic!("it failed")
    };
    again(&place, ImageResponse::done(&place.request, figures)).await;
    again(
        &place,
        ImageResponse::failed(&place.request, "late".to_owned()),
    )
    .await;
    place.drained().await;

    assert_eq!(
        place
            .ledger
            .response(&place.request)
            .await
            .expect("readable"),
        record
    );
    assert!(place.mosaic().await == mosaic);
    assert_eq!(place.poison().await, 0);
    one.shutdown(GUARD).await;
    other.shutdown(GUARD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_first_holds() {
    let (place, settings) = (Place::new().await, Settings::default());
    let _broker = broker(&place.service, &place.store, &settings).expect("it starts");
    let _controller = controller(&place.service, &place.store, &settings).expect("it starts");
    place.submit(job()).await;
    place.requested(4).await;
    let tile_size = 8;
    place.submit(Job { tile_size, ..job() }).await;
    place.requested(8).await;
    let _processor = processor(&place.service, &place.store, &settings).expect("it starts");
    let mosaic = place.mosaic().await;
    place.drained().await;
    assert_eq!(place.plan().await.asked.tile_size, 4);
    assert_eq!(place.poison().await, 0);

    let other = Place::new().await;
    let _others = other.start(2);
    other.submit(job()).await;
    assert!(other.mosaic().await == mosaic);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_belongs_to_one_picture() {
    let place = Place::new().await;
    place.submit(job()).await;
    let image = encode_png(&mosaic::picture::draw_scene(30, 20));
    let taken = place
        .client
        .submit(Job { image, ..job() }, &place.request, |_| {})
        .await;
    assert!(matches!(taken, Err(ClientError::Taken(_))), "{taken:?}");
}
