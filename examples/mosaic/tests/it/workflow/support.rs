//! A small job, and the service and store that it runs on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use mosaic::storage::blob::BlobName;
use mosaic::storage::records::{PlanRecord, Records};
use mosaic::storage::store::Store;
use mosaic::workflow::client::{Client, Job};
use mosaic::workflow::embedded::Embedded;
use mosaic::workflow::messages::ImageOutcome;
use mosaic::workflow::roles::Settings;
use pictures::{Library, Picture};
use queue_runtime::{QueueService, RequestId};

/// A timeout that only a hang reaches.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

pub(crate) const QUEUES: [&str; 4] = [
    "imagerequest",
    "slicerequest",
    "sliceresponse",
    "imageresponse",
];

pub(crate) struct Fixture {
    pub(crate) service: QueueService,
    pub(crate) store: Store,
    pub(crate) client: Client,
    pub(crate) records: Records,
    pub(crate) request: RequestId,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let service = QueueService::connect("memory:").await;
        Self::over(service.expect("the memory engine opens"))
    }

    pub(crate) fn over(service: QueueService) -> Self {
        let store = Store::memory();
        Self {
            client: Client::new(service.clone(), store.clone()),
            records: Records::new(store.clone()),
            request: RequestId::random(),
            service,
            store,
        }
    }

    pub(crate) fn start(&self, processors: usize) -> Embedded {
        let settings = Settings::default();
        Embedded::start(&self.service, &self.store, processors, &settings).expect("they start")
    }

    pub(crate) async fn submit(&self, job: Job) {
        let submitted = self.client.submit(job, &self.request).await;
        submitted.expect("submitted");
    }

    /// Puts something else in the place of a blob.
    pub(crate) async fn replace(&self, blob: &BlobName, by: &'static str) {
        self.store.remove(blob).await.expect("removed");
        self.store.create(blob, by).await.expect("created");
    }

    pub(crate) async fn outcome(&self) -> ImageOutcome {
        self.client
            .follow(&self.request, GUARD, |_, _| {})
            .await
            .expect("a response")
    }

    pub(crate) async fn reason(&self) -> String {
        match self.outcome().await {
            ImageOutcome::Failed { reason } => reason,
            ImageOutcome::Done { .. } => panic!("a mosaic was made"),
        }
    }

    pub(crate) async fn mosaic(&self) -> Vec<u8> {
        match self.outcome().await {
            ImageOutcome::Done { image, figures } => {
                let mosaic = self.client.mosaic(&self.request, &image, figures.bytes);
                let parts = mosaic.await.expect("the mosaic").try_collect::<Vec<_>>();
                parts.await.expect("all parts").concat()
            }
            ImageOutcome::Failed { reason } => panic!("no mosaic: {reason}"),
        }
    }

    pub(crate) async fn plan(&self) -> PlanRecord {
        until("the plan is recorded", async || {
            let plan = self.records.find(&self.request).await;
            plan.expect("the records are readable")
        })
        .await
    }

    /// Waits until this many slice requests are on their queue.
    pub(crate) async fn requested(&self, slices: usize) {
        let waiting = async || self.count("slicerequest").await == slices;
        until("the slices are requested", async || {
            waiting().await.then_some(())
        })
        .await;
    }

    /// Waits until the queues are empty.
    pub(crate) async fn drained(&self) {
        for queue in QUEUES {
            until(queue, async || (self.count(queue).await == 0).then_some(())).await;
        }
    }

    pub(crate) async fn poison(&self) -> usize {
        let mut found = 0;
        for queue in QUEUES {
            found += self.count(&format!("{queue}-poison")).await;
        }
        found
    }

    /// The number of messages on a queue, which may not exist.
    pub(crate) async fn count(&self, queue: &str) -> usize {
        let queue = self.service.any_queue(queue).expect("a name");
        let properties = queue.properties().await;
        properties.map_or(0, |properties| properties.approximate_count)
    }
}

/// Polls until there is a value: neither a queue nor a folder of records announces a change.
pub(crate) async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < GUARD, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A picture of 24 × 16 tiles in four slices.
pub(crate) fn job() -> Job {
    Job {
        image_name: "scene.png".to_owned(),
        image: Picture::scene(96, 64).to_png(),
        library: library(40),
        tile_size: 4,
        across: 24,
        slices: 4,
        tint: 0.35,
    }
}

/// Tiles that all differ.
pub(crate) fn library(count: u8) -> Arc<Library> {
    let tile = |n: u8| {
        let near = [n.wrapping_mul(83), n.wrapping_mul(151), n.wrapping_mul(37)];
        let far = [n.wrapping_mul(59), n.wrapping_mul(101), n.wrapping_mul(193)];
        let picture = Picture::from_fn(16, 16, |x, y| if x + y < 16 { near } else { far });
        (format!("tile-{n}.png"), picture.to_png())
    };
    let files: Vec<_> = (0..count).map(tile).collect();
    Library::load(&files).expect("a library").0.into()
}
