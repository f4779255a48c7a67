//! The last slice assembles and answers, once: the claim of the answer in the result store.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mosaic::storage::blob::BlobName;
use mosaic::workflow::messages::{SliceOutcome, SliceResponse};
use mosaic::workflow::roles::{Settings, broker, controller, processor};
use queue_runtime::QueueService;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Owner, ResultStore, Swept, WorkKey,
};
use queue_runtime::internal::forward_backend;
use queue_runtime::testing::TokioClock;

use crate::workflow::support::{Fixture, GUARD, job, until};

/// Counts the claims of answers, and can act as if its process was killed around the recording of one.
#[derive(Debug)]
struct Watched {
    results: Arc<dyn ResultStore>,
    answers: Arc<AtomicUsize>,
    kill: Kill,
    killed: AtomicBool,
}

/// When the process is killed: from then on, no call ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kill {
    Never,
    BeforeTheAnswerIsRecorded,
    AfterTheAnswerWasRecorded,
}

impl Watched {
    async fn alive(&self) {
        if self.killed.load(SeqCst) {
            pending().await
        }
    }
}

#[async_trait]
impl ResultStore for Watched {
    fn clock(&self) -> Arc<dyn queue_runtime::clock::Clock> {
        self.results.clock()
    }

    async fn begin(
        &self,
        key: &WorkKey,
        owner: Owner,
        lease: Duration,
    ) -> queue_runtime::Result<ClaimOutcome> {
        self.alive().await;
        let begun = self.results.begin(key, owner, lease).await?;
        if key.scope() == "answer" && matches!(begun, ClaimOutcome::Fresh(_)) {
            self.answers.fetch_add(1, SeqCst);
        }
        Ok(begun)
    }

    async fn renew(
        &self,
        key: &WorkKey,
        claim: Claim,
        lease: Duration,
    ) -> queue_runtime::Result<ClaimStatus> {
        self.alive().await;
        self.results.renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> queue_runtime::Result<ClaimStatus> {
        let is_answer = key.scope() == "answer";
        if is_answer && self.kill == Kill::BeforeTheAnswerIsRecorded {
            self.killed.store(true, SeqCst);
        }
        self.alive().await;
        let standing = self.results.finish(key, claim, result, retention).await;
        if is_answer && self.kill == Kill::AfterTheAnswerWasRecorded {
            self.killed.store(true, SeqCst);
        }
        self.alive().await;
        standing
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

/// The queues of a process, with the result store that it sees.
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
    forward_backend!(self => self.queues; capabilities queue_uri partition notifier payload_store transactions create_queue delete_queue
        list_queues properties metadata set_metadata put put_if receive peek attachment browse find update delete clear apply);

    fn results(&self) -> Option<Arc<dyn ResultStore>> {
        Some(Arc::clone(&self.results) as _)
    }
}

/// Queues and results payload_store that several services share.
struct Shared {
    queues: Arc<MemoryBackend>,
    answers: Arc<AtomicUsize>,
}

impl Shared {
    fn new() -> Self {
        Self {
            queues: Arc::new(MemoryBackend::new(Arc::new(TokioClock::new()))),
            answers: Arc::default(),
        }
    }

    async fn service(&self, kill: Kill) -> (QueueService, Arc<Watched>) {
        let results = Arc::new(Watched {
            results: self.queues.results().expect("memory has one"),
            answers: Arc::clone(&self.answers),
            kill,
            killed: AtomicBool::new(false),
        });
        let seen = Seen {
            queues: Arc::clone(&self.queues),
            results: Arc::clone(&results),
        };
        let service = QueueService::with_backend(Arc::new(seen))
            .clock(Arc::new(TokioClock::new()))
            .on_current_runtime();
        (service.connect().await.expect("it connects"), results)
    }
}

/// Has a controller die at its answer, and another one finish the request. The mosaic is replaced in between, which a
/// second join would undo. Returns the number of claims.
async fn die_at_the_answer(kill: Kill) -> usize {
    let shared = Shared::new();
    let (service, _) = shared.service(Kill::Never).await;
    let fixture = Fixture::over(service);
    let settings = Settings::default();
    let (dying, results) = shared.service(kill).await;
    let victim = controller(&dying, &fixture.store, &settings).expect("it starts");
    let _processor = processor(&fixture.service, &fixture.store, &settings).expect("it starts");
    fixture.submit(job()).await;
    until("the answer is made", async || {
        results.killed.load(SeqCst).then_some(())
    })
    .await;
    drop((victim, dying));
    let mosaic = BlobName::mosaic(&fixture.request);
    let marked = fixture.store.write(&mosaic, "made before").await;
    marked.expect("the store answers");

    let _controller = controller(&fixture.service, &fixture.store, &settings).expect("it starts");
    until("the slices are handled", async || {
        (fixture.count("sliceresponse").await == 0).then_some(())
    })
    .await;
    assert_eq!(fixture.count("imageresponse").await, 1);
    let _broker = broker(&fixture.service, &fixture.store, &settings);
    assert!(
        fixture.mosaic().await == b"made before",
        "it was joined again"
    );
    fixture.drained().await;
    assert_eq!(fixture.poison().await, 0);
    shared.answers.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_join_whose_process_dies_before_it_is_recorded_is_not_made_again() {
    let claims = die_at_the_answer(Kill::BeforeTheAnswerIsRecorded).await;
    assert_eq!(claims, 2, "the one that died, and one");
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_process_dies_before_it_responds_is_given_by_its_message() {
    let claims = die_at_the_answer(Kill::AfterTheAnswerWasRecorded).await;
    assert_eq!(claims, 1);
}

#[tokio::test(start_paused = true)]
async fn of_many_duplicates_of_all_slices_one_joins() {
    let shared = Shared::new();
    let (service, _) = shared.service(Kill::Never).await;
    let (other, _) = shared.service(Kill::Never).await;
    let fixture = Fixture::over(service);
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
        let submission = fixture.service.submit(duplicate);
        let submitted = submission.request_id(fixture.request.as_str()).await;
        submitted.expect("submitted");
    }

    // Two controllers, so that they race. Without a broker, no handler learns that the request is answered.
    let controllers = [&fixture.service, &other]
        .map(|service| controller(service, &fixture.store, &settings).expect("it starts"));
    until("the responses are handled", async || {
        (fixture.count("sliceresponse").await == 0).then_some(())
    })
    .await;
    assert_eq!(shared.answers.load(SeqCst), 1);
    assert_eq!(fixture.count("imageresponse").await, 1, "of 44 handlers");
    let _broker = broker(&fixture.service, &fixture.store, &settings);
    fixture.mosaic().await;
    fixture.drained().await;
    assert_eq!(fixture.poison().await, 0);
    drop(controllers);
}
