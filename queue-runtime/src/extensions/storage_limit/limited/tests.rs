use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_clock::TokioClock;
use queue_core::backend::{BackendExt as _, Metadata, NewMessage, ReceivedMessage, TimeToLive};
use queue_core::clock::BoxFuture;
use queue_core::internal::forward_backend;
use queue_tests::SECOND;

use super::*;
use crate::backend::MemoryBackend;
use crate::extensions::meter::Metered;
use crate::kernel::observe::Meter;

static QUEUE: QueueName = QueueName::from_static("orders");
const LEASE: Duration = Duration::from_secs(3_600);

struct Setup {
    clock: Arc<dyn Clock>,
    memory: Arc<MemoryBackend>,
    limited: Arc<dyn Backend>,
}

/// Returns a queue in memory that is asked once a second at most.
async fn setup() -> Setup {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let memory = Arc::new(MemoryBackend::new(Arc::clone(&clock)));
    let created = memory.create_queue(&QUEUE, &Metadata::new()).await;
    created.expect("created");
    let limit = StorageLimit::new().per_queue(1).per_account(1);
    let limited = around(limit, Arc::clone(&memory) as _, &clock);
    Setup {
        clock,
        memory,
        limited,
    }
}

fn around(
    limit: StorageLimit,
    backend: Arc<dyn Backend>,
    clock: &Arc<dyn Clock>,
) -> Arc<dyn Backend> {
    let (meter, limiter) = (Arc::new(Meter::new()), limit.limiter(clock));
    Arc::new(Metered::new(backend, limiter, meter, None))
}

fn message() -> NewMessage {
    NewMessage::new(Bytes::from_static(b"7"))
}

fn put(queue: &QueueName) -> Op {
    Op::Put {
        queue: queue.clone(),
        message: message(),
    }
}

impl Setup {
    /// Returns how many tokens a call takes, of which there is one when it begins: the seconds until another one has its own.
    async fn tokens<T, E: fmt::Debug>(&self, call: impl Future<Output = Result<T, E>>) -> u64 {
        tokio::time::sleep(10 * SECOND).await;
        let began = self.clock.monotonic();
        call.await.expect("carried out");
        let next = self.limited.properties(&QUEUE);
        next.await.expect("carried out");
        (self.clock.monotonic() - began).as_secs()
    }

    async fn received(&self) -> ReceivedMessage {
        self.memory.put(&QUEUE, message()).await.expect("put");
        let received = self.memory.receive(&QUEUE, 1, LEASE).await;
        received.expect("received").pop().expect("a message")
    }
}

/// Makes calls alike.
fn call<'a, T>(call: impl Future<Output = Result<T>> + Send + 'a) -> BoxFuture<'a, Result<()>> {
    Box::pin(async { call.await.map(drop) })
}

#[tokio::test(start_paused = true)]
async fn each_request_takes_a_token() {
    let of = setup().await;
    let backend = &*of.limited;
    let other = QueueName::from_static("invoices");
    let (one, two) = (of.received().await, of.received().await);
    let none = Metadata::new();
    let calls = [
        ("create", call(backend.create_queue(&other, &none))),
        ("list", call(backend.list_queues(""))),
        ("set metadata", call(backend.set_metadata(&QUEUE, &none))),
        ("metadata", call(backend.metadata(&QUEUE))),
        ("properties", call(backend.properties(&QUEUE))),
        ("put", call(backend.put(&QUEUE, message()))),
        ("peek", call(backend.peek(&QUEUE, 1))),
        ("browse", call(backend.browse(&QUEUE, None, 1))),
        ("receive", call(backend.receive(&QUEUE, 1, LEASE))),
        (
            "update",
            call(backend.renew(&QUEUE, &one.id, &one.receipt, LEASE, None)),
        ),
        (
            "delete",
            call(backend.delete(&QUEUE, &two.id, &two.receipt)),
        ),
        ("clear", call(backend.clear(&QUEUE))),
        ("delete queue", call(backend.delete_queue(&other))),
    ];
    for (name, call) in calls {
        assert_eq!(of.tokens(call).await, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn operations_take_a_token_each_unless_they_are_one_request() {
    let of = setup().await;
    let ops = || vec![put(&QUEUE), put(&QUEUE), put(&QUEUE)];
    assert_eq!(of.tokens(of.limited.apply(ops().into())).await, 1);
    assert_eq!(of.tokens(of.limited.apply(Vec::new().into())).await, 0);
    let in_order: Arc<dyn Backend> = Arc::new(InOrder::over(Arc::clone(&of.memory)));
    let limit = StorageLimit::new().per_queue(1);
    let of = Setup {
        limited: around(limit, in_order, &of.clock),
        ..of
    };
    assert_eq!(of.tokens(of.limited.apply(ops().into())).await, 3);
    assert_eq!(of.tokens(of.limited.apply(Vec::new().into())).await, 0);
}

#[tokio::test(start_paused = true)]
async fn operations_in_order_fail_as_the_engine_s_do() {
    let of = setup().await;
    let in_order: Arc<dyn Backend> = Arc::new(InOrder::over(Arc::clone(&of.memory)));
    let limited = around(StorageLimit::new().per_queue(1), in_order, &of.clock);
    let missing = QueueName::from_static("missing");
    let failed = limited.apply(vec![put(&QUEUE), put(&missing), put(&QUEUE)].into());
    let failed = failed.await.expect_err("a queue is missing");
    assert_eq!((failed.index, failed.completed.len()), (1, 1));
    assert_eq!(failed.error.kind(), ErrorKind::QueueNotFound);
    let expired = NewMessage {
        time_to_live: TimeToLive::After(Duration::ZERO),
        ..message()
    };
    let invalid = Op::Put {
        queue: QUEUE.clone(),
        message: expired,
    };
    let failed = limited.apply(vec![put(&QUEUE), invalid].into());
    let failed = failed.await.expect_err("it is invalid");
    assert_eq!((failed.index, failed.completed.len()), (1, 0));
    let stored = of.memory.properties(&QUEUE).await.expect("read");
    assert_eq!(stored.approximate_count, 1, "that before the missing queue");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_goes_before_what_was_there_earlier() {
    let of = setup().await;
    let one = of.received().await;
    of.limited.properties(&QUEUE).await.expect("read");
    let (limited, clock) = (Arc::clone(&of.limited), Arc::clone(&of.clock));
    let earlier = tokio::spawn(async move {
        limited.put(&QUEUE, message()).await.expect("put");
        clock.monotonic()
    });
    tokio::task::yield_now().await;
    let settlement = Op::Delete {
        queue: QUEUE.clone(),
        id: one.id,
        receipt: one.receipt,
        moved: false,
    };
    let settled = of.limited.apply(vec![put(&QUEUE), settlement].into()).await;
    settled.expect("settled");
    assert_eq!(of.clock.monotonic(), SECOND);
    assert_eq!(earlier.await.expect("no panic"), 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_receive_is_told_when_it_was_sent() {
    let of = setup().await;
    let clock = &*of.clock;
    of.limited.properties(&QUEUE).await.expect("read");
    let sending = SendTime::default();
    assert_eq!(sending.counts_from(Duration::ZERO, clock), Duration::ZERO);
    let receive = sending.scope(of.limited.receive(&QUEUE, 1, LEASE));
    let waits = async {
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(sending.counts_from(Duration::ZERO, clock), SECOND / 2);
    };
    let (received, ()) = tokio::join!(receive, waits);
    received.expect("received");
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(sending.counts_from(Duration::ZERO, clock), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_was_given_up_is_not_sent() {
    let of = setup().await;
    of.limited.properties(&QUEUE).await.expect("read");
    let sending = SendTime::default();
    let receive = || sending.scope(of.limited.receive(&QUEUE, 1, LEASE));
    sending.restart(true);
    let hurried = receive().await.expect_err("it would have to wait");
    assert!(hurried.is_unsent(), "{hurried}");
    sending.restart(false);
    let gives_up = async {
        tokio::time::sleep(SECOND / 2).await;
        sending.give_up();
    };
    let (given_up, ()) = tokio::join!(receive(), gives_up);
    assert!(given_up.expect_err("the request was given up").is_unsent());
    assert_eq!(of.clock.monotonic(), SECOND / 2);
    of.limited.properties(&QUEUE).await.expect("read");
    assert_eq!(of.clock.monotonic(), SECOND, "it has taken no token");
}

/// Applies operations one by one.
#[derive(Debug)]
struct InOrder(Arc<MemoryBackend>, queue_core::backend::Capabilities);

impl InOrder {
    fn over(memory: Arc<MemoryBackend>) -> Self {
        let mut capabilities = memory.capabilities().clone();
        capabilities.atomicity = Atomicity::InOrder;
        Self(memory, capabilities)
    }
}

#[async_trait]
impl Backend for InOrder {
    forward_backend!(self => self.0; all but capabilities apply);

    fn capabilities(&self) -> &queue_core::backend::Capabilities {
        &self.1
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let mut completed = OpOutcomes::new();
        for (index, op) in ops.into_iter().enumerate() {
            match self.0.apply(Ops::from([op])).await {
                Ok(outcomes) => completed.extend(outcomes),
                Err(failed) => return Err(ApplyError::new(index, completed, failed.error)),
            }
        }
        Ok(completed)
    }
}
