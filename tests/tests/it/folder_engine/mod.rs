//! An engine that is not one of ours, made by the recipe in CONTRIBUTING.md: it passes the conformance suite, and a
//! service runs on it.

mod engine;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use queue_core::ManualClock;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{Harness, Load, OpenedBackend, Stepped, Survival};
use queue_runtime::{Disposition, Message, QueueService, Received, backend};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use engine::FolderBackend;
use queue_tests::orders::ShopOrder;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("threads start"));

struct FolderHarness;

struct FolderStore {
    folder: TempDir,
    clock: ManualClock,
    client: Arc<FolderBackend>,
}

fn connect(folder: &TempDir, clock: &ManualClock) -> Arc<FolderBackend> {
    let opened = FolderBackend::open(folder.path().to_owned(), Arc::new(clock.clone()));
    Arc::new(opened.expect("open"))
}

#[async_trait]
impl Harness for FolderHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        let (folder, clock) = (TempDir::new().expect("a folder"), ManualClock::new());
        Box::new(FolderStore {
            client: connect(&folder, &clock),
            folder,
            clock,
        })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        RUNTIME.block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let running = RUNTIME.spawn(task);
        Box::pin(async { running.await.expect("no panic") })
    }

    /// Every operation reads all files of the queue.
    fn load(&self) -> Load {
        Load {
            tasks: 4,
            messages: 200,
        }
    }
}

#[async_trait]
impl OpenedBackend for FolderStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.client) as Arc<dyn Backend>
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        connect(&self.folder, &self.clock)
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = connect(&self.folder, &self.clock);
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Kept
    }

    async fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    fn step_back(&self, by: Duration) -> Stepped {
        let by = SignedDuration::try_from(by).expect("within range");
        self.clock.step_wall_clock(-by);
        Stepped::Yes
    }
}

queue_core::conformance_tests!(FolderHarness);

#[derive(Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "bills")]
struct Bill {
    number: u32,
}

#[test]
fn a_service_runs_on_it() {
    let folder = TempDir::new().expect("a folder");
    RUNTIME.block_on(async {
        backend::register("folder", |url, clock| async move {
            let folder = url.strip_prefix("folder:").unwrap_or(&url);
            let opened = FolderBackend::open(folder.into(), clock)?;
            Ok(Arc::new(opened) as Arc<dyn Backend>)
        });
        let url = format!("folder:{}", folder.path().display());
        let connect = async || QueueService::connect(&url).await.expect("connects");
        let (web, worker) = (connect().await, connect().await);
        for queue in ["orders", "bills"] {
            let queue = web.any_queue(queue).expect("a name");
            queue.create().await.expect("created");
        }
        web.submit(ShopOrder { number: 7 })
            .await
            .expect("submitted");
        let listener = worker.listener(async |order: Received<ShopOrder>| {
            let number = order.number;
            Disposition::complete().then(&Bill { number })
        });
        let listener = listener.start().expect("starts");
        let bill = loop {
            let accepted = web.accept::<Bill>().await.expect("no error");
            if let Some(bill) = accepted {
                break bill;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(*bill.message(), Bill { number: 7 });
        bill.complete().await.expect("completed");
        listener.shutdown(Duration::from_secs(60)).await;
        assert!(folder.path().join("queues/bills").is_dir());
    });
}
