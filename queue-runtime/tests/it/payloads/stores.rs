//! The payload stores under their conformance suite.

use std::sync::Arc;

use async_trait::async_trait;
use queue_core::clock::BoxFuture;
use queue_core::conformance::payloads::{Harness, OpenedPayloads};
use queue_runtime::payloads::{MemoryPayloads, PayloadStore};
use tokio::runtime::Builder;

enum Place {
    Memory,
    #[cfg(feature = "object-store")]
    Objects,
    #[cfg(feature = "object-store")]
    Folder,
}

/// A store, and how another client of it is opened.
struct Opened {
    client: Arc<dyn PayloadStore>,
    again: Box<dyn Fn() -> Arc<dyn PayloadStore> + Send + Sync>,
}

impl Opened {
    fn by(again: impl Fn() -> Arc<dyn PayloadStore> + Send + Sync + 'static) -> Self {
        Self {
            client: again(),
            again: Box::new(again),
        }
    }
}

#[async_trait]
impl Harness for Place {
    async fn open(&self) -> Box<dyn OpenedPayloads> {
        Box::new(match self {
            Self::Memory => {
                let store = Arc::new(MemoryPayloads::new());
                Opened::by(move || Arc::clone(&store) as _)
            }
            #[cfg(feature = "object-store")]
            Self::Objects => {
                let objects = Arc::new(object_store::memory::InMemory::new());
                Opened::by(move || {
                    let objects = Arc::clone(&objects) as _;
                    Arc::new(queue_runtime::payloads::ObjectPayloads::new(
                        objects,
                        "some/prefix",
                    ))
                })
            }
            #[cfg(feature = "object-store")]
            Self::Folder => {
                let folder = tempfile::tempdir().expect("a directory");
                Opened::by(move || {
                    let path = folder.path().join("payloads");
                    let opened = queue_runtime::payloads::ObjectPayloads::create_in_folder(path);
                    Arc::new(opened.expect("opens"))
                })
            }
        })
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.expect("threads start").block_on(test);
    }
}

#[async_trait]
impl OpenedPayloads for Opened {
    fn client(&self) -> Arc<dyn PayloadStore> {
        Arc::clone(&self.client)
    }

    async fn second_client(&self) -> Arc<dyn PayloadStore> {
        (self.again)()
    }
}

mod memory {
    queue_core::payload_store_tests!(super::Place::Memory);
}

#[cfg(feature = "object-store")]
mod objects {
    queue_core::payload_store_tests!(super::Place::Objects);
}

#[cfg(feature = "object-store")]
mod folder {
    queue_core::payload_store_tests!(super::Place::Folder);
}
