//! Leases under a storage engine that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_core::backend::{
    ApplyError, Backend, Capabilities, Created, Lease, Metadata, NewMessage, Op, OpOutcome,
    PeekedMessage, PopReceipt, PutReceipt, QueueProperties, ReceivedMessage, StorageId,
};
use queue_core::{ErrorKind, Outcome};
use queue_runtime::backend::MemoryBackend;
use queue_runtime::{
    Clock, Error, ListenerEvent, Message, Operation, QueueName, QueueService, Received, Result,
    SettleProblem, SystemClock,
};
use serde::{Deserialize, Serialize};

use crate::support::{GUARD, count, events, stop};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
struct Parcel {
    weight: u32,
}

/// What becomes of deletes and updates.
#[derive(Debug, Default)]
struct Weather {
    /// They are carried out, and the answer is lost.
    answers_lost: AtomicBool,
    /// They are not carried out.
    refused: AtomicBool,
}

#[derive(Debug)]
struct Stormy {
    inner: MemoryBackend,
    weather: Arc<Weather>,
}

impl Stormy {
    fn answer<T>(&self, operation: Operation, answer: Result<T>) -> Result<T> {
        if self.weather.answers_lost.swap(false, Ordering::SeqCst) {
            return Err(
                Error::new(ErrorKind::Unreachable, operation).with_outcome(Outcome::Unknown)
            );
        }
        answer
    }

    fn refuse(&self, operation: Operation) -> Result<()> {
        if self.weather.refused.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Denied, operation));
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for Stormy {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn queue_uri(&self, queue: &QueueName) -> String {
        self.inner.queue_uri(queue)
    }
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created> {
        self.inner.create_queue(queue, metadata).await
    }
    async fn delete_queue(&self, queue: &QueueName) -> Result<()> {
        self.inner.delete_queue(queue).await
    }
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>> {
        self.inner.list_queues(prefix).await
    }
    async fn properties(&self, queue: &QueueName) -> Result<QueueProperties> {
        self.inner.properties(queue).await
    }
    async fn set_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<()> {
        self.inner.set_metadata(queue, metadata).await
    }
    async fn put(&self, queue: &QueueName, message: NewMessage) -> Result<PutReceipt> {
        self.inner.put(queue, message).await
    }
    async fn receive(
        &self,
        queue: &QueueName,
        max: u32,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        self.inner.receive(queue, max, visibility).await
    }
    async fn peek(&self, queue: &QueueName, max: u32) -> Result<Vec<PeekedMessage>> {
        self.inner.peek(queue, max).await
    }
    async fn update(
        &self,
        queue: &QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Result<Lease> {
        self.refuse(Operation::Update)?;
        let answer = self
            .inner
            .update(queue, id, receipt, visibility, body)
            .await;
        self.answer(Operation::Update, answer)
    }
    async fn delete(&self, queue: &QueueName, id: &StorageId, receipt: &PopReceipt) -> Result<()> {
        self.refuse(Operation::Delete)?;
        let answer = self.inner.delete(queue, id, receipt).await;
        self.answer(Operation::Delete, answer)
    }
    async fn clear(&self, queue: &QueueName) -> Result<()> {
        self.inner.clear(queue).await
    }
    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>, ApplyError> {
        self.inner.apply(ops).await
    }
}

async fn stormy() -> (QueueService, Arc<Weather>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let weather = Arc::new(Weather::default());
    let inner = MemoryBackend::new(Arc::clone(&clock));
    let backend = Arc::new(Stormy {
        inner,
        weather: Arc::clone(&weather),
    });
    let service = QueueService::over(backend)
        .clock(clock)
        .connect()
        .await
        .expect("connects");
    (service, weather)
}

#[tokio::test]
async fn a_delete_whose_answer_is_lost_is_repeated_and_presumed_done() {
    let (service, weather) = stormy().await;
    service
        .submit(Parcel { weight: 1 })
        .await
        .expect("submitted");
    let delivery = service
        .accept::<Parcel>()
        .await
        .expect("no error")
        .expect("a message");
    weather.answers_lost.store(true, Ordering::SeqCst);
    delivery
        .complete()
        .await
        .expect("404 after one's own unanswered delete is success");
}

#[tokio::test]
async fn a_handled_message_that_could_not_be_deleted_is_not_handled_again() {
    let (service, weather) = stormy().await;
    service
        .submit(Parcel { weight: 1 })
        .await
        .expect("submitted");
    weather.refused.store(true, Ordering::SeqCst);
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&runs);
    let listener = service
        .listener(move |_: Received<Parcel>| {
            seen.fetch_add(1, Ordering::SeqCst);
            async {}
        })
        .visibility_timeout(Duration::from_secs(1));
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    let unsettled = |event: &ListenerEvent| matches!(event, ListenerEvent::NotSettled { .. });
    events(&mut seen, 1, unsettled).await;
    weather.refused.store(false, Ordering::SeqCst);
    let completed = |event: &ListenerEvent| matches!(event, ListenerEvent::Completed { .. });
    events(&mut seen, 1, completed).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(count(&service, "parcel").await, 0);
    stop(listener).await;
}

#[tokio::test]
async fn a_delivery_that_could_not_be_completed_may_still_be_released() {
    let (service, weather) = stormy().await;
    service
        .submit(Parcel { weight: 1 })
        .await
        .expect("submitted");
    let accept = || service.accept::<Parcel>();
    let delivery = accept().await.expect("no error").expect("a message");
    weather.refused.store(true, Ordering::SeqCst);
    let error = delivery.complete().await.expect_err("refused");
    assert!(
        matches!(error.problem, SettleProblem::NotDone(_)),
        "{:?}",
        error.problem
    );
    weather.refused.store(false, Ordering::SeqCst);
    error.delivery.release().await.expect("released");
    let again = accept().await.expect("no error");
    assert!(again.is_some(), "it was not done, so it comes again");
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_cancels_nothing_before_the_certain_expiry() {
    let (service, weather) = stormy().await;
    service
        .submit(Parcel { weight: 1 })
        .await
        .expect("submitted");
    let accept = service
        .accept::<Parcel>()
        .visibility_timeout(Duration::from_secs(2));
    let accepted_at = std::time::Instant::now();
    let delivery = accept.await.expect("no error").expect("a message");
    weather.answers_lost.store(true, Ordering::SeqCst);
    tokio::time::timeout(GUARD, delivery.cancelled())
        .await
        .expect("the lease ends at last");
    // Renewed at half-life by the call that got no answer, it may last that much longer.
    assert!(accepted_at.elapsed() >= Duration::from_secs(3));
    let error = delivery.complete().await.expect_err("its receipt is lost");
    assert!(
        matches!(error.problem, SettleProblem::LeaseLost(_)),
        "{:?}",
        error.problem
    );
}
