//! The last slice assembles, once: the claim of the join in the store of results.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mosaic::blob::BlobName;
use mosaic::messages::{SliceOutcome, SliceResponse};
use mosaic::roles::{Settings, broker, controller, processor};
use queue_runtime::QueueService;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::idempotency::{Begun, Claim, IdempotencyStore, Owner, Standing, Swept, WorkKey};
use queue_runtime::internal::forward_backend;
use queue_runtime::testing::TokioClock;

use crate::support::{Fixture, GUARD, job, until};

/// Counts the claims of the join, and can act as if its process was killed before it recorded a result.
#[derive(Debug)]
struct Watched {
    results: Arc<dyn IdempotencyStore>,
    joins: Arc<AtomicUsize>,
    /// Whether the next `finish` of a join, and all calls after it, never end.
    is_killed_at_finish: bool,
    killed: AtomicBool,
}

impl Watched {
    async fn alive(&self) {
        if self.killed.load(SeqCst) {
            pending().await
        }
    }
}

#[async_trait]
impl IdempotencyStore for Watched {
    fn clock(&self) -> Arc<dyn queue_runtime::Clock> {
        self.results.clock()
    }

    async fn begin(
        &self,
        key: &WorkKey,
        owner: Owner,
        lease: Duration,
    ) -> queue_runtime::Result<Begun> {
        self.alive().await;
        let begun = self.results.begin(key, owner, lease).await?;
        if key.scope() == "join" && matches!(begun, Begun::Fresh(_)) {
            self.joins.fetch_add(1, SeqCst);
        }
        Ok(begun)
    }

    async fn renew(
        &self,
        key: &WorkKey,
        claim: Claim,
        lease: Duration,
    ) -> queue_runtime::Result<Standing> {
        self.alive().await;
        self.results.renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> queue_runtime::Result<Standing> {
        if self.is_killed_at_finish && key.scope() == "join" {
            self.killed.store(true, SeqCst);
        }
        self.alive().await;
        self.results.finish(key, claim, result, retention).await
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> queue_runtime::Result<()> {
        self.alive().await;
        self.results.release(key, claim).await
    }

    async fn sweep(&self) -> queue_runtime::Result<Swept> {
        self.alive().await;
        self.results.sweep().await
    }
}

/// The queues of a process, with the store of results that it sees.
#[derive(Debug)]
struct Seen {
    queues: Arc<MemoryBackend>,
    results: Arc<Watched>,
}

#[warn(
    clippy::missing_trait_methods,
    reason = "a method that is not forwarded would hide the backend's own"
)]
#[async_trait]
impl Backend for Seen {
    forward_backend!(self => self.queues; capabilities queue_uri notifier transactions create_queue delete_queue
        list_queues properties metadata set_metadata put put_if receive peek browse update delete clear apply);

    fn results(&self) -> Option<Arc<dyn IdempotencyStore>> {
        Some(Arc::clone(&self.results) as _)
    }
}

/// Queues and results that several services share.
struct Shared {
    queues: Arc<MemoryBackend>,
    joins: Arc<AtomicUsize>,
}

impl Shared {
    fn new() -> Self {
        Self {
            queues: Arc::new(MemoryBackend::new(Arc::new(TokioClock::new()))),
            joins: Arc::default(),
        }
    }

    async fn service(&self, is_killed_at_finish: bool) -> (QueueService, Arc<Watched>) {
        let results = Arc::new(Watched {
            results: self.queues.results().expect("memory has one"),
            joins: Arc::clone(&self.joins),
            is_killed_at_finish,
            killed: AtomicBool::new(false),
        });
        let seen = Seen {
            queues: Arc::clone(&self.queues),
            results: Arc::clone(&results),
        };
        let service = QueueService::over(Arc::new(seen))
            .clock(Arc::new(TokioClock::new()))
            .on_current_runtime();
        (service.connect().await.expect("it connects"), results)
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_whose_process_dies_before_it_is_recorded_is_not_made_again() {
    let shared = Shared::new();
    let (service, _) = shared.service(false).await;
    let fixture = Fixture::over(service);
    let settings = Settings::default();
    let (dying, results) = shared.service(true).await;
    let victim = controller(&dying, &fixture.store, &settings).expect("it starts");
    let _processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    let _broker = broker(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    until("the join is made", async || {
        results.killed.load(SeqCst).then_some(())
    })
    .await;
    drop((victim, dying));
    // A second join would replace it.
    let mosaic = BlobName::mosaic(&fixture.request);
    let marked = fixture.store.write(&mosaic, "made before").await;
    marked.expect("the store answers");

    let _controller = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    assert!(
        fixture.mosaic().await == b"made before",
        "it was joined again"
    );
    fixture.drained().await;
    assert_eq!(shared.joins.load(SeqCst), 2, "the one that died, and one");
    assert_eq!(fixture.poison().await, 0);
}

#[tokio::test(start_paused = true)]
async fn of_many_duplicates_of_all_slices_one_joins() {
    let shared = Shared::new();
    let (service, _) = shared.service(false).await;
    let (other, _) = shared.service(false).await;
    let fixture = Fixture::over(service);
    let settings = Settings {
        tasks: 16,
        ..Settings::default()
    };
    let planning = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    fixture.requested(4).await;
    planning.shutdown(GUARD).await;
    let processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    until("the slices are rendered", async || {
        (fixture.count("slicerequest").await == 0).then_some(())
    })
    .await;
    processor.shutdown(GUARD).await;
    for sequence in (0..4).cycle().take(40) {
        let blob = BlobName::rendered(&fixture.request, sequence);
        let duplicate = SliceResponse {
            slice_sequence: sequence,
            outcome: SliceOutcome::Rendered { blob },
            attempts: 1,
        };
        let submission = fixture.service.submit(duplicate);
        let submitted = submission.request(fixture.request.as_str()).await;
        submitted.expect("submitted");
    }

    // Two controllers, so that they race. Without a broker, no handler learns that the request is answered.
    let controllers = [&fixture.service, &other]
        .map(|service| controller(service, &fixture.store, &settings).expect("it starts"));
    until("the responses are handled", async || {
        (fixture.count("sliceresponse").await == 0).then_some(())
    })
    .await;
    assert_eq!(shared.joins.load(SeqCst), 1);
    assert!(fixture.count("imageresponse").await > 1, "nobody raced");
    let _broker = broker(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.mosaic().await;
    fixture.drained().await;
    assert_eq!(fixture.poison().await, 0);
    drop(controllers);
}
