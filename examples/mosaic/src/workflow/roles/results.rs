use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::error::RetryAdvice;
use queue_runtime::idempotency::{OnceError, OnceErrorKind, ResultStore, WorkKey};
use queue_runtime::{Failure, QueueService, RequestId, once};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::role::Settings;
use crate::storage::records::Records;
use crate::storage::store::Store;

/// The recorded results of work that is done once for each request.
#[derive(Debug, Clone)]
pub(super) struct Results {
    store: Arc<dyn ResultStore>,
    records: Records,
    lease: Duration,
}

/// The lease of a claim, unless the visibility timeout of messages is set.
const LEASE: Duration = Duration::from_secs(30);
/// The pause between two sweeps, and between two steps of a sweep.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60 * 60);
const SWEEP_STEP: Duration = Duration::from_secs(1);

impl Results {
    /// Uses the store that lies where the queues do. Storage accounts have none, so results are blobs there.
    pub(super) fn new(service: &QueueService, blobs: &Store, settings: &Settings) -> Self {
        let store = service.results();
        Self {
            store: store.unwrap_or_else(|| Arc::new(blobs.results())),
            records: Records::new(blobs.clone()),
            lease: settings.visibility_timeout.unwrap_or(LEASE),
        }
    }

    /// Does the work of a request, or returns its recorded result.
    ///
    /// # Errors
    /// The failure of the work. If the work is in flight elsewhere for longer than a lease, or the store is down, the
    /// message is postponed. What is recorded of this work and cannot be read is a failed attempt.
    pub(super) async fn once<T>(
        &self,
        work: &str,
        request: &RequestId,
        effect: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure>
    where
        T: Serialize + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        // With the time, since an id can be used again after its records were removed.
        let record = self.records.request(request).await?;
        let submitted = record.map_or_else(String::new, |record| record.submitted);
        let key = WorkKey::new(work, format!("{submitted} {request}"));
        let done = once(&self.store, key, effect)
            .lease(self.lease)
            .wait(self.lease);
        match done.await {
            Ok(result) => Ok(result),
            Err(OnceError {
                kind: OnceErrorKind::Work(failure),
                ..
            }) => Err(failure),
            Err(error) if may_pass(&error) => Err(Failure::postpone(self.lease, error)),
            Err(error) => Err(Failure::retry(error)),
        }
    }

    /// Removes results whose retention is over, from time to time.
    pub(super) async fn keep_swept(self) {
        loop {
            let pause = match self.store.sweep().await {
                Ok(swept) if swept.more => SWEEP_STEP,
                Ok(_) => SWEEP_INTERVAL,
                Err(error) => {
                    tracing::warn!(%error, "failed to sweep the result store; will retry");
                    SWEEP_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// Whether waiting may help.
fn may_pass<T, E>(error: &OnceError<T, E>) -> bool {
    let source = match &error.kind {
        OnceErrorKind::InFlight | OnceErrorKind::Lost => return true,
        OnceErrorKind::Store(source) => Some(source),
        OnceErrorKind::NotRecorded { source, .. } => source.as_ref(),
        _ => return false,
    };
    source.is_none_or(|source| source.retry() != RetryAdvice::Permanent)
}
