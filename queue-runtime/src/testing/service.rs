use std::sync::Arc;

use queue_core::backend::Backend;

use super::{FaultInjector, TokioClock};
use crate::QueueService;
use crate::backend::MemoryBackend;

/// Connects to private queues in memory, on a [`TokioClock`]. Leases are renewed on the current runtime.
///
/// See the [module](super) for an example.
///
/// # Panics
/// If called outside a Tokio runtime.
pub async fn service() -> QueueService {
    let clock = TokioClock::new();
    let backend = MemoryBackend::new(Arc::new(clock.clone()));
    connect(Arc::new(backend), clock).await
}

/// Connects as [`service`] does, and returns the [`FaultInjector`] in front of the queues.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::testing::{self, Fault};
/// use queue_runtime::{Message, Operation, SettleProblem};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, Message)]
/// struct Order {
///     number: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (service, faults) = testing::service_with_faults().await;
/// service.submit(Order { number: 7 }).await?;
/// let order = service.accept::<Order>().await?.expect("just submitted");
///
/// faults.fail_next(1, Operation::Delete, Fault::LeaseLost(Duration::from_secs(30)));
/// let error = order.complete().await.unwrap_err();
/// assert!(matches!(error.problem, SettleProblem::LeaseLost(_)));
/// assert_eq!(faults.injected(Operation::Delete), 1);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// If called outside a Tokio runtime.
pub async fn service_with_faults() -> (QueueService, FaultInjector) {
    let clock = TokioClock::new();
    let backend = MemoryBackend::new(Arc::new(clock.clone()));
    let faults = FaultInjector::new(Arc::new(backend));
    (connect(Arc::new(faults.clone()), clock).await, faults)
}

async fn connect(backend: Arc<dyn Backend>, clock: TokioClock) -> QueueService {
    QueueService::over(backend)
        .client("test")
        .clock(Arc::new(clock))
        .on_current_runtime()
        .connect()
        .await
        .expect("connecting a test service needs nothing but a Tokio runtime")
}
