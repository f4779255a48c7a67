use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use mosaic::workflow::client::{ClientError, Job, Progress};
use mosaic::workflow::embedded::Embedded;
use mosaic::workflow::messages::{Figures, ImageOutcome};
use mosaic::workflow::roles::Settings;
use pictures::{Joiner, Layout, Library, Picture, Renderer, Slice, TileSize};
use queue_runtime::meter::TransactionKind;
use std::time::Duration;

use crate::workflow::support::{Fixture, GUARD, job, tiles};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
    let (library, _) = Library::load(&job.library).expect("a library");
    let renderer = Renderer::new(library);
    let out = Shared::default();
    let mut joiner = Joiner::new(plan, out.clone()).expect("a joiner");
    for slice in Slice::cut(&source, &plan) {
        joiner
            .push(&renderer.render(&slice, tile_size, job.tint))
            .expect("a slice");
    }
    joiner.finish().expect("all slices");
    let bytes = out.0.lock().expect("nobody panicked");
    bytes.clone()
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
    let mut seen = Vec::new();
    let submitted = fixture
        .client
        .submit(job(), &fixture.request, |progress| seen.push(progress));
    submitted.await.expect("submitted");
    assert_eq!(seen[0], Progress::Uploaded { done: 1, total: 41 });
    assert_eq!(
        seen[39],
        Progress::Uploaded {
            done: 40,
            total: 41
        }
    );
    assert_eq!(seen.last(), Some(&Progress::Submitted));
    let ImageOutcome::Done { figures, .. } = fixture.outcome().await else {
        panic!("it failed")
    };
    let expected = Figures {
        width: 96,
        height: 64,
        tiles: 384,
        slices: 4,
        retries: 0,
    };
    assert_eq!(figures, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_is_uploaded_once() {
    let fixture = Fixture::new().await;
    let _roles = fixture.start(2);
    fixture.submit(job()).await;
    let first = fixture.mosaic().await;

    let second = Fixture {
        request: queue_runtime::RequestId::random(),
        ..fixture
    };
    let mut uploads = 0;
    let mut library = tiles(40);
    library.reverse();
    let again = Job { library, ..job() };
    let submitted = second.client.submit(again, &second.request, |progress| {
        uploads += u32::from(matches!(progress, Progress::Uploaded { .. }));
    });
    submitted.await.expect("submitted");
    assert_eq!(
        uploads, 2,
        "once for the existing library, once for the picture"
    );
    assert!(second.mosaic().await == first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_stops_waiting_after_its_timeout() {
    let fixture = Fixture::new().await;
    fixture.submit(job()).await;
    let timeout = Duration::from_millis(1);
    let error = fixture
        .client
        .follow(&fixture.request, timeout, |_| {})
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
