//! Payloads in a container of blobs, on Azurite.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use queue_core::clock::BoxFuture;
use queue_core::conformance::payloads::{Harness, OpenedPayloads};
use queue_runtime::ErrorKind;
use queue_runtime::backend::Backend as _;
use queue_runtime::payloads::PayloadStore;

use crate::case::{BUSY, PATIENCE, RUNTIME, connect, run};
use crate::server::ACCOUNT;

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
