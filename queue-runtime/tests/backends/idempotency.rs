//! The result stores under their conformance suite.

mod memory {
    use queue_core::conformance::OfBackend;

    use crate::memory::MemoryHarness;

    queue_core::result_store_tests!(OfBackend::new(MemoryHarness::new()));
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use queue_core::conformance::OfBackend;

    use crate::sqlite::conformance::SqliteHarness;

    queue_core::result_store_tests!(OfBackend::new(SqliteHarness));
}

#[cfg(feature = "sqlite")]
mod sharded {
    use queue_core::conformance::OfBackend;

    use crate::sharded::{Accounts, ShardedHarness};

    mod on_three_memories {
        use super::*;

        queue_core::result_store_tests!(OfBackend::new(ShardedHarness(Accounts::Memory(3))));
    }

    mod on_two_files {
        use super::*;

        queue_core::result_store_tests!(OfBackend::new(ShardedHarness(Accounts::Files(2))));
    }
}

#[cfg(feature = "object-store")]
mod objects {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use object_store::ObjectStore;
    use object_store::memory::InMemory;
    use queue_core::ManualClock;
    use queue_core::clock::BoxFuture;
    use queue_core::conformance::Survival;
    use queue_core::conformance::idempotency::{Harness, Listing, OpenedResults, Retention};
    use queue_core::idempotency::ResultStore;
    use queue_runtime::idempotency::ObjectResults;
    use queue_runtime::payloads::{MemoryPayloads, PayloadStore};
    use tempfile::TempDir;

    use crate::threads;

    /// Where the objects are.
    #[derive(Clone, Copy)]
    enum Place {
        Memory,
        Folder,
        Container,
    }

    enum Objects {
        Memory(Arc<dyn ObjectStore>),
        Folder(TempDir),
        Container(Arc<dyn PayloadStore>),
    }

    struct Results {
        objects: Objects,
        clock: ManualClock,
        client: Arc<dyn ResultStore>,
    }

    fn connect(objects: &Objects, clock: &ManualClock) -> Arc<dyn ResultStore> {
        let results = match objects {
            Objects::Memory(objects) => ObjectResults::new(Arc::clone(objects), "results"),
            Objects::Folder(folder) => {
                ObjectResults::create_in_folder(folder.path()).expect("opened")
            }
            Objects::Container(container) => ObjectResults::in_container(Arc::clone(container)),
        };
        Arc::new(results.with_clock(Arc::new(clock.clone())))
    }

    #[async_trait]
    impl Harness for Place {
        async fn open(&self) -> Box<dyn OpenedResults> {
            let objects = match self {
                Self::Memory => Objects::Memory(Arc::new(InMemory::new())),
                Self::Folder => Objects::Folder(TempDir::new().expect("a folder")),
                Self::Container => Objects::Container(Arc::new(MemoryPayloads::new())),
            };
            let clock = ManualClock::new();
            let client = connect(&objects, &clock);
            Box::new(Results {
                objects,
                clock,
                client,
            })
        }

        fn block_on(&self, test: BoxFuture<'_, ()>) {
            threads::block_on(test);
        }

        fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
            threads::spawn(task)
        }
    }

    #[async_trait]
    impl OpenedResults for Results {
        fn client(&self) -> Arc<dyn ResultStore> {
            Arc::clone(&self.client)
        }

        async fn second_client(&self) -> Arc<dyn ResultStore> {
            connect(&self.objects, &self.clock)
        }

        async fn reopen(&mut self) -> Arc<dyn ResultStore> {
            self.client = connect(&self.objects, &self.clock);
            self.client()
        }

        fn survival(&self) -> Survival {
            Survival::Kept
        }

        async fn advance(&self, duration: Duration) {
            self.clock.advance(duration);
        }

        /// Ages are told by the object store's own clock.
        fn retention(&self) -> Retention {
            Retention::AtLeast
        }

        fn listing(&self) -> Listing {
            Listing::Unsupported
        }
    }

    mod in_memory {
        queue_core::result_store_tests!(super::Place::Memory);
    }

    mod in_a_container {
        queue_core::result_store_tests!(super::Place::Container);
    }

    mod in_a_folder {
        queue_core::result_store_tests!(super::Place::Folder);
    }
}
