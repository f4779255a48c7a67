use mosaic::workflow::client::{ClientError, Job};
use mosaic::workflow::embedded::Embedded;
use mosaic::workflow::messages::{Figures, ImageOutcome};
use mosaic::workflow::roles::Settings;
use pictures::{Layout, Library, Picture, PictureError, Renderer, Slice, TileSize, join};
use queue_runtime::meter::TransactionKind;
use std::time::Duration;

use crate::workflow::support::{Fixture, GUARD, job};

/// The mosaic made without queues.
fn directly(job: &Job) -> Vec<u8> {
    let source = Picture::decode("scene", &job.image).expect("a picture");
    let tile_size = TileSize::try_from(job.tile_size).expect("allowed");
    let layout = Layout {
        across: job.across,
        tile_size,
        slices: job.slices,
    };
    let plan = layout.plan(source.dimensions()).expect("a plan");
    let renderer = Renderer::new(
        Library::from_png(&job.library.to_png(), job.library.fingerprint()).expect("a library"),
    );
    let mut slices = Slice::cut(&source, &plan);
    let mut mosaic = Vec::new();
    let joined = join(&plan, &mut mosaic, |_| {
        let slice = slices.next().expect("a slice");
        Ok::<_, PictureError>(renderer.render(&slice, tile_size, job.tint).to_png())
    });
    joined.expect("all slices");
    mosaic
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_do_not_depend_on_the_number_of_processors() {
    let expected = directly(&job());
    for processors in [1, 2, 4] {
        let fixture = Fixture::new().await;
        let mut roles = fixture.start(processors);
        fixture.submit(job()).await;
        assert!(
            fixture.mosaic().await == expected,
            "{processors} processors"
        );
        fixture.drained().await;
        let totals = roles.shutdown(GUARD).await;
        assert_eq!(
            (totals.completed, totals.retried, totals.poisoned),
            (10, 0, 0)
        );
    }
}

/// However long it takes: while a queue is empty, nobody polls it.
#[tokio::test(flavor = "multi_thread")]
async fn hardly_any_receive_of_a_job_finds_nothing() {
    let fixture = Fixture::new().await;
    let pace = Duration::from_millis(50);
    let settings = Settings {
        pace,
        ..Settings::default()
    };
    let roles = Embedded::start(&fixture.service, &fixture.store, 2, &settings);
    let _roles = roles.expect("they start");
    let slices = 16;
    fixture.submit(Job { slices, ..job() }).await;
    fixture.mosaic().await;
    let used = fixture.service.meter().total();
    let empty = used.of(TransactionKind::EmptyReceive);
    // Mostly 5 to 9 of 120; a message that is received before its announcement arrives costs another one.
    assert!(empty * 7 < used.total(), "{used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_sees_the_progress_and_the_figures() {
    let fixture = Fixture::new().await;
    let _roles = fixture.start(1);
    fixture.submit(job()).await;
    let mut seen = Vec::new();
    let progress = |done, total| seen.push((done, total));
    let followed = fixture.client.follow(&fixture.request, GUARD, progress);
    followed.await.expect("a response");
    assert!(
        seen.iter()
            .all(|(done, total)| done <= total && *total == 4)
    );
    assert!(seen.is_sorted(), "{seen:?}");
    let ImageOutcome::Done { figures, .. } = fixture.outcome().await else {
        panic!("it failed")
    };
    let expected = Figures {
        width: 96,
        height: 64,
        bytes: fixture.mosaic().await.len() as u64,
        tiles: 384,
        slices: 4,
        retries: 0,
    };
    assert_eq!(figures, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_stops_waiting_after_its_timeout() {
    let fixture = Fixture::new().await;
    fixture.submit(job()).await;
    let timeout = Duration::from_millis(1);
    let error = fixture
        .client
        .follow(&fixture.request, timeout, |_, _| {})
        .await;
    let error = error.expect_err("no role is running");
    assert!(matches!(error, ClientError::NoResponse { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("within 1ms: it has not been planned"),
        "{error}"
    );
}
