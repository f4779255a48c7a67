//! A layer: a backend over a backend, which answers later. What it does not change it forwards.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue_runtime::backend::forward_backend;
use queue_runtime::backend::{
    ApplyError, Backend, MemoryBackend, OpOutcomes, Ops, ReceivedMessage,
};
use queue_runtime::error::Result;
use queue_runtime::testing::TokioClock;
use queue_runtime::{Message, QueueName, QueueService};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Payment {
    amount: i64,
}

/// A storage as far away as another continent.
#[derive(Debug)]
struct Slow<B> {
    inner: B,
    delay: Duration,
}

#[async_trait]
impl<B: Backend> Backend for Slow<B> {
    forward_backend!(self => self.inner; all but receive apply);

    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        sleep(self.delay).await;
        self.inner.receive(queue, max, visibility).await
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        sleep(self.delay).await;
        self.inner.apply(ops).await
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_takes_longer() {
    let inner = MemoryBackend::new(Arc::new(TokioClock::new()));
    let slow = Slow {
        inner,
        delay: SECOND,
    };
    let service = QueueService::with_backend(Arc::new(slow))
        .connect()
        .await
        .expect("connects");
    let started = Instant::now();
    service.submit(Payment { amount: 7 }).await.expect("stored");
    let payment = service
        .accept::<Payment>()
        .await
        .expect("no error")
        .expect("stored");
    payment.complete().await.expect("settled");
    assert!(
        started.elapsed() >= 3 * SECOND,
        "a put, a receive and a deletion"
    );
}
