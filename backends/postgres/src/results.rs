//! The result store: changes by the writer's task, reads by the reader's.

use std::sync::Arc;

use async_trait::async_trait;
use queue_core::backend::{PageMark, Swap, SwapOutcome};
use queue_core::clock::Clock;
use queue_core::idempotency::{
    Forgotten, MAX_RECORDS, Recorded, RecordedPage, ResultStore, StoreIdentity, Swept, WorkKey,
};
use queue_core::internal::record_start;
use queue_core::{Error, ErrorKind, Operation, Outcome, Result};

use crate::asker::Asker;
use crate::failure::Failure;
use crate::records;
use crate::writer::{Done, Failed, Work, Writer};

/// The results in the database of a [`PostgresBackend`](crate::PostgresBackend), shared by any number of machines.
///
/// Leases and retentions are timed by the server's clock. The scope and the key of a record may have up to 2,500 bytes
/// together. Clones share the backend's connections.
#[derive(Clone)]
pub struct PostgresResults {
    pub(crate) writer: Writer,
    pub(crate) reader: Asker,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: StoreIdentity,
}

impl PostgresResults {
    async fn ask(&self, work: Work) -> Result<Done, Failure> {
        let answer = self.writer.ask(work).await;
        answer.map_err(|Failed { failure, .. }| failure)
    }
}

#[async_trait]
impl ResultStore for PostgresResults {
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn identity(&self) -> Option<&StoreIdentity> {
        Some(&self.identity)
    }

    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome> {
        match self.ask(Work::Swap(swap.clone())).await {
            Ok(Done::Swapped) => Ok(SwapOutcome::Swapped),
            Err(Failure::Conflict(found)) => Ok(SwapOutcome::Differs(found)),
            Ok(other) => Err(another_answer(&other)),
            Err(failure) => Err(error(failure)),
        }
    }

    async fn sweep(&self) -> Result<Swept> {
        match self.ask(Work::Sweep).await.map_err(error)? {
            Done::Swept(swept) => Ok(swept),
            other => Err(another_answer(&other)),
        }
    }

    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage> {
        let (scope, start) = (scope.map(str::to_owned), record_start(scope, from)?);
        let max = max.clamp(1, MAX_RECORDS);
        let listed = self.reader.ask(move |session| {
            Box::pin(async move { records::list(session, scope.as_deref(), &start, max).await })
        });
        listed.await.map_err(error)
    }

    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        let key = key.clone();
        let found = self
            .reader
            .ask(move |session| Box::pin(async move { records::find(session, &key).await }));
        found.await.map_err(error)
    }

    async fn forget(&self, key: &WorkKey) -> Result<Forgotten> {
        match self.ask(Work::Forget(key.clone())).await.map_err(error)? {
            Done::Forgotten(forgotten) => Ok(forgotten),
            other => Err(another_answer(&other)),
        }
    }
}

queue_core::internal::debug_fields!(PostgresResults { identity });

fn error(failure: Failure) -> Error {
    failure.into_error(Operation::Results, None)
}

/// The error of an answer to something else than was asked for.
fn another_answer(answer: &Done) -> Error {
    Error::new(ErrorKind::Corrupt, Operation::Results)
        .with_detail(format!("the writer answered with {answer:?}"))
        .with_outcome(Outcome::Unknown)
}
