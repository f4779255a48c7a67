//! The backend and its result store under the conformance suites.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_core::backend::Backend;
use queue_core::clock::BoxFuture;
use queue_core::conformance::{Harness, Load, OpenedBackend, Stepped, Survival};
use queue_postgres::PostgresBackend;

use crate::server::{self, Schema};

/// The schema of each test.
struct PostgresHarness(fn() -> Schema);

pub(crate) struct PostgresStore {
    client: Option<Arc<PostgresBackend>>,
    pub(crate) schema: Schema,
}

/// Puts the server's time ahead by what is in a table, so that no test has to wait.
const VIRTUAL_TIME: &str = "CREATE TABLE test_clock AS SELECT 0::bigint AS ahead;
    CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + (SELECT ahead FROM test_clock) $$";

impl PostgresStore {
    pub(crate) async fn open() -> Self {
        Self::open_in(Schema::new()).await
    }

    async fn open_in(schema: Schema) -> Self {
        let mut store = Self {
            client: None,
            schema,
        };
        store.client = Some(store.connect().await);
        store.schema.execute(VIRTUAL_TIME).await;
        store
    }

    async fn connect(&self) -> Arc<PostgresBackend> {
        Arc::new(self.schema.open().await)
    }
}

#[async_trait]
impl Harness for PostgresHarness {
    async fn open(&self) -> Box<dyn OpenedBackend> {
        Box::new(PostgresStore::open_in(self.0()).await)
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        server::block_on(test);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        server::spawn(task)
    }

    fn load(&self) -> Load {
        Load {
            messages: 20_000,
            ..Load::default()
        }
    }
}

#[async_trait]
impl OpenedBackend for PostgresStore {
    fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(self.client.as_ref().expect("open")) as Arc<dyn Backend>
    }

    async fn second_client(&self) -> Arc<dyn Backend> {
        self.connect().await
    }

    async fn reopen(&mut self) -> Arc<dyn Backend> {
        self.client = None;
        self.client = Some(self.connect().await);
        self.client()
    }

    fn survival(&self) -> Survival {
        Survival::Kept
    }

    async fn advance(&self, duration: Duration) {
        let micros = duration.as_micros();
        let advance = format!("UPDATE test_clock SET ahead = ahead + {micros}");
        self.schema.execute(&advance).await;
    }

    fn step_back(&self, _: Duration) -> Stepped {
        // Time then stands still for this process, until the server's clock has caught up.
        Stepped::OutOfReach
    }
}

/// The suites of the backend and of its result store.
macro_rules! suites {
    ($schema:path) => {
        queue_core::conformance_tests!(PostgresHarness($schema));

        mod results {
            use super::{PostgresHarness, Schema};

            queue_core::result_store_tests!(queue_core::conformance::OfBackend::new(
                PostgresHarness($schema)
            ));
        }
    };
}

/// The suite of the notifier.
macro_rules! suite_of_notifier {
    ($schema:path) => {
        mod wakeups {
            use queue_core::conformance::OfBackend;
            use queue_core::conformance::notify::Arming;

            use super::{PostgresHarness, Schema};

            queue_core::notifier_tests!(
                OfBackend::new(PostgresHarness($schema)).arming(Arming::Always)
            );
        }
    };
}

suites!(Schema::new);
suite_of_notifier!(Schema::new);

/// Behind a pooler in transaction mode.
mod pooled {
    use super::{PostgresHarness, Schema};

    suites!(Schema::pooled);
    suite_of_notifier!(Schema::pooled_and_listening);
}
