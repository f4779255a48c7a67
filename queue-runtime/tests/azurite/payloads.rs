//! Payloads and results in containers of blobs, on Azurite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::clock::BoxFuture;
use queue_core::conformance::payloads::{Harness, OpenedPayloads};
use queue_runtime::backend::Backend as _;
use queue_runtime::payloads::PayloadStore;
use queue_runtime::recurring::every;
use queue_runtime::{ErrorKind, Message, Received, once};
use serde::{Deserialize, Serialize};

use crate::case::{BUSY, PATIENCE, RUNTIME, connect, patient, run};
use crate::server::{ACCOUNT, connection_string, runtime};

struct Container;

struct Opened {
    name: String,
    client: Arc<dyn PayloadStore>,
}

async fn open(name: &str) -> Arc<dyn PayloadStore> {
    let backend = connect(&BUSY.connection_string(ACCOUNT), PATIENCE).await;
    let store = backend.payload_store(name).expect("a name");
    store.expect("it has containers")
}

#[async_trait]
impl Harness for Container {
    async fn open(&self) -> Box<dyn OpenedPayloads> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("payloads-{}", NEXT.fetch_add(1, Relaxed));
        let client = open(&name).await;
        client.prepare().await.expect("created");
        Box::new(Opened { name, client })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        RUNTIME.block_on(test);
    }
}

#[async_trait]
impl OpenedPayloads for Opened {
    fn client(&self) -> Arc<dyn PayloadStore> {
        Arc::clone(&self.client)
    }

    async fn second_client(&self) -> Arc<dyn PayloadStore> {
        open(&self.name).await
    }
}

queue_core::payload_store_tests!(Container);

/// What is not there because its container is not is not known to be missing.
#[test]
fn without_its_container_nothing_is_missing() {
    run(async {
        let store = open("never-created").await;
        let errors = [
            store
                .read("data/any", 0, 1)
                .await
                .expect_err("no container"),
            store.delete("data/any").await.expect_err("no container"),
            store.list("", None).await.expect_err("no container"),
            store
                .create("data/any", "any".into())
                .await
                .expect_err("no container"),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
            assert!(
                error.to_string().contains("`never-created` does not exist"),
                "{error}"
            );
        }
    });
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(queue = "beside-reports", visibility_timeout = "5m")]
struct BesideReport {
    #[message(key)]
    number: u32,
}

/// A store of results in a container of the same account.
#[test]
fn results_beside_the_queues_serve_once_schedules_and_listeners() {
    runtime().block_on(async {
        let connect = async || {
            let service = patient(&connection_string()).await;
            let service = service.results_in("results-beside");
            service.connect().await.expect("connect")
        };
        let (service, other) = (connect().await, connect().await);
        let can = service.can();
        assert!(can.results && !can.unique && !can.schedules, "{can:?}");
        let done = AtomicU32::new(0);
        for service in [&service, &other] {
            let store = service.results().expect("in the container");
            let work = async {
                done.fetch_add(1, Relaxed);
                Ok::<_, std::io::Error>(7)
            };
            let result = once(&store, "order-7", work).await;
            assert_eq!(result.expect("done before, or now"), 7);
        }
        assert_eq!(done.load(Relaxed), 1);

        let every_second = every(Duration::from_secs(1));
        let schedule = service.schedule("beside", every_second, |_| BesideReport { number: 1 });
        let schedule = schedule.start().expect("the store is known");
        let accepted = service
            .accept::<BesideReport>()
            .wait(Duration::from_secs(60));
        let report = accepted.await.expect("accept").expect("a tick");
        report.complete().await.expect("complete");
        schedule.stop().await;

        let (handled, mut numbers) = tokio::sync::mpsc::unbounded_channel();
        let store = service.results().expect("in the container");
        let listener = service.listener(move |report: Received<BesideReport>| {
            let handled = handled.clone();
            async move { handled.send(report.number).expect("the test waits") }
        });
        let listener = listener
            .idempotent(Arc::clone(&store))
            .start()
            .expect("starts");
        for number in [2, 2, 3] {
            service
                .submit(BesideReport { number })
                .request_id("the-same")
                .await
                .expect("submit");
        }
        let mut seen = Vec::new();
        while !seen.contains(&2) || !seen.contains(&3) {
            seen.push(numbers.recv().await.expect("the listener runs"));
        }
        listener.shutdown(Duration::from_secs(60)).await;
        while let Ok(number) = numbers.try_recv() {
            seen.push(number);
        }
        assert_eq!(
            seen.iter().filter(|number| **number == 2).count(),
            1,
            "{seen:?}"
        );
        store.sweep().await.expect("swept");
    });
}
