//! Layers around handlers, and services as handlers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use queue_runtime::listener::{ReceiveErrorKind, Route, StartErrorKind};
use queue_runtime::receive::OnError;
use queue_runtime::testing;
use queue_runtime::tower::{Work, service};
use queue_runtime::{
    Batch, Disposition, Failure, ListenerEvent, ListenerEventKind, Message, Received, RetryPolicy,
    batch, blocking,
};
use queue_tests::SECOND;
use queue_tests::orders::{Order, order};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::{Layer, Service, ServiceBuilder, service_fn};

use crate::support::{NEVER, count, stop, with_orders};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "orders", kind = "note")]
struct Note {
    text: String,
}

/// What the layers and the handler did.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().expect("free").push(line.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("free"))
    }
}

/// Notes what it lets through.
#[derive(Clone)]
struct Noting {
    name: &'static str,
    log: Log,
}

#[derive(Clone)]
struct Noted<S> {
    layer: Noting,
    inner: S,
}

impl<S> Layer<S> for Noting {
    type Service = Noted<S>;

    fn layer(&self, inner: S) -> Noted<S> {
        let layer = self.clone();
        Noted { layer, inner }
    }
}

impl<S: Service<Work>> Service<Work> for Noted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, polling: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(polling)
    }

    fn call(&mut self, work: Work) -> S::Future {
        let (name, envelope) = (self.layer.name, work.envelope());
        let line = format!("{name}: {} {}", envelope.kind, work.attempt());
        self.layer.log.add(line);
        self.inner.call(work)
    }
}

/// Counts the messages that run at a time.
#[derive(Clone, Default)]
struct Peak {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Peak {
    async fn run(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        sleep(SECOND).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

async fn work(peak: Peak, _: Received<Order>) {
    peak.run().await;
}

#[tokio::test(start_paused = true)]
async fn layers_are_around_the_handler_and_around_those_of_earlier_calls() {
    let (service, log) = (with_orders(0..1).await, Log::default());
    let note = Note {
        text: String::new(),
    };
    service.submit(note).await.expect("submitted");
    let noting = |name| Noting {
        name,
        log: log.clone(),
    };
    let handler = async |log: Log, order: Received<Order>| {
        log.add("handler");
        match order.attempt() {
            1 => Disposition::retry("once more"),
            _ => Disposition::complete(),
        }
    };
    let orders = Route::with(log.clone(), handler);
    let router = service
        .router("orders")
        .expect("a name")
        .route(orders.layer(noting("1")).layer(noting("2")))
        .handle(async |_: Received<Note>| ())
        .layer(noting("3"))
        .layer(noting("4"))
        .retry(RetryPolicy::fixed(60 * SECOND));
    let listener = router.start().expect("starts");
    testing::drain([&listener]).await.expect("drained");
    let lines = log.take();
    let of_order: Vec<_> = lines.iter().filter(|line| !line.contains("note")).collect();
    let once = |attempt: usize| {
        let layers = ["4", "3", "2", "1"].map(|name| format!("{name}: order {attempt}"));
        layers.into_iter().chain(["handler".to_owned()])
    };
    let expected: Vec<_> = once(1).chain(once(2)).collect();
    assert_eq!(of_order, expected.iter().collect::<Vec<_>>());
    let of_note: Vec<_> = lines.iter().filter(|line| line.contains("note")).collect();
    assert_eq!(of_note, ["4: note 1", "3: note 1"]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_layer_is_a_failure_that_can_be_classified() {
    let service = with_orders(0..1).await;
    let listener = service
        .listener(async |_: Received<Order>| std::future::pending::<()>().await)
        .layer(TimeoutLayer::new(5 * SECOND))
        .classify(|_: &Elapsed| OnError::Reject)
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.poisoned(), 1);
    assert!(drained.elapsed < 10 * SECOND, "{:?}", drained.elapsed);
    stop(listener).await;
}

/// What the layer is not ready for is left to other instances.
#[tokio::test(start_paused = true)]
async fn no_more_is_received_than_the_layers_are_ready_for() {
    let (service, peak) = (with_orders(0..100).await, Peak::default());
    let listener = service.listener_with(peak.clone(), work);
    let listener = listener.layer(ConcurrencyLimitLayer::new(3));
    let listener = listener.start().expect("starts");
    sleep(SECOND / 2).await;
    let info = listener.info();
    assert_eq!((info.in_flight, info.parked), (3, 0));
    let others = service.accept_many::<Order>(256).await.expect("accepted");
    assert_eq!(others.len(), 97, "visible to others");
    for other in others {
        other.release().await.expect("released");
    }
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(peak.most(), 3);
    stop(listener).await;
}

/// Two listeners share a limit. The one that finds nothing does not keep what it was ready for.
#[tokio::test(start_paused = true)]
async fn readiness_is_given_up_when_the_queue_is_empty() {
    let (service, peak) = (with_orders(0..0).await, Peak::default());
    let limit = tower::limit::GlobalConcurrencyLimitLayer::new(4);
    let others = service.queue_named::<Order>("others").expect("a name");
    let idle = others.listener_with(peak.clone(), work).create_queue();
    let idle = idle.layer(limit.clone()).start().expect("starts");
    sleep(600 * SECOND).await;
    service
        .submit_all((0..40).map(order))
        .await
        .expect("submitted");
    let busy = service.listener_with(peak.clone(), work).layer(limit);
    let busy = busy.start().expect("starts");
    let drained = testing::drain([&busy]).await.expect("drained");
    assert_eq!((drained.completed(), peak.most()), (40, 4));
    assert!(drained.elapsed < 20 * SECOND, "{:?}", drained.elapsed);
    stop(idle).await;
    stop(busy).await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_type_wait_until_its_layers_are_ready() {
    let (service, peak) = (with_orders(0..20).await, Peak::default());
    let notes = (0..50).map(|number| Note {
        text: number.to_string(),
    });
    service.submit_all(notes).await.expect("submitted");
    let orders = Route::with(peak.clone(), work);
    let router = service
        .router("orders")
        .expect("a name")
        .route(orders.layer(ConcurrencyLimitLayer::new(2)))
        .handle(async |_: Received<Note>| ());
    let listener = router.start().expect("starts");
    sleep(SECOND / 2).await;
    let info = listener.info();
    assert_eq!((info.completed, info.in_flight), (50, 18), "{info:?}");
    assert_eq!(info.parked, 16, "half the room");
    testing::drain([&listener]).await.expect("drained");
    assert_eq!(peak.most(), 2);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_is_a_handler_whose_readiness_is_awaited() {
    let (queues, peak) = (with_orders(0..30).await, Peak::default());
    let running = peak.clone();
    let ship = ServiceBuilder::new()
        .concurrency_limit(5)
        .service(service_fn(move |order: Received<Order>| {
            let running = running.clone();
            async move {
                running.run().await;
                match order.number {
                    7 => Err(Failure::reject("seven")),
                    _ => Ok(()),
                }
            }
        }));
    let listener = queues.listener::<Order, _>(service(ship));
    let listener = listener.start().expect("starts");
    sleep(SECOND / 2).await;
    assert_eq!(listener.info().in_flight, 5);
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), drained.poisoned()), (29, 1));
    assert_eq!(peak.most(), 5);
    stop(listener).await;
}

/// The first times, it fails to become ready.
#[derive(Clone)]
struct Moody(Arc<AtomicUsize>);

impl<S> Layer<S> for Moody {
    type Service = Moods<S>;

    fn layer(&self, inner: S) -> Moods<S> {
        Moods(self.clone(), inner)
    }
}

#[derive(Clone)]
struct Moods<S>(Moody, S);

impl<S: Service<Work>> Service<Work> for Moods<S> {
    type Response = S::Response;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<S::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let left = &self.0.0;
        let next = |left: usize| left.checked_sub(1);
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
            Ok(_) => Poll::Ready(Err("not today".into())),
            Err(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, work: Work) -> Self::Future {
        drop(work);
        Box::pin(async { Err("it is not handled".into()) })
    }
}

fn not_ready(events: &mut Receiver<ListenerEvent>) -> usize {
    let events = std::iter::from_fn(|| events.try_recv().ok());
    let is_of_layer =
        |event: &ListenerEvent| matches!(event.kind, ListenerEventKind::NotReady { .. });
    events.filter(is_of_layer).count()
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_fails_to_become_ready_is_reported_and_counts_against_no_message() {
    let service = with_orders(0..1).await;
    let moody = Moody(Arc::new(AtomicUsize::new(3)));
    let listener = service.listener(async |_: Received<Order>| ());
    let listener = listener.layer(moody).poison_threshold(1);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    sleep(SECOND / 10).await;
    let failure = listener.info().failure.expect("it is known");
    assert!(matches!(failure.error.kind, ReceiveErrorKind::NotReady(_)));
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.poisoned(), 1, "then it fails to handle it");
    assert_eq!(not_ready(&mut events), 3);
    stop(listener).await;

    let service = with_orders(0..1).await;
    let moody = Moody(Arc::new(AtomicUsize::new(3)));
    let route = Route::new(async |_: Received<Order>| ()).layer(moody);
    let router = service
        .router("orders")
        .expect("a name")
        .route(route)
        .poison_threshold(1);
    let mut events = router.events();
    let listener = router.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.poisoned(), drained.listeners[0].released), (1, 0));
    assert_eq!(not_ready(&mut events), 3);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn layers_around_what_is_no_async_handler_are_refused() {
    let service = with_orders(0..0).await;
    let limit = || ConcurrencyLimitLayer::new(3);
    let blocks = || blocking(|_: Received<Order>| ());
    let batches = || batch(|_: Batch<Order>| async {});
    for started in [
        service.listener(blocks()).layer(limit()).start(),
        service.listener(batches()).layer(limit()).start(),
        service
            .router("orders")
            .expect("a name")
            .route(Route::new(blocks()).layer(limit()))
            .start(),
    ] {
        let error = started.expect_err("refused");
        assert!(
            matches!(error.kind, StartErrorKind::Layers { .. }),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn messages_in_layers_are_handed_back_when_the_listener_stops() {
    let service = with_orders(0..5).await;
    let listener = service
        .listener(async |_: Received<Order>| std::future::pending::<()>().await)
        .layer(TimeoutLayer::new(NEVER))
        .start()
        .expect("starts");
    sleep(SECOND).await;
    let report = listener.shutdown(Duration::ZERO).await;
    assert_eq!(report.info.released, 5);
    assert_eq!(count(&service, "orders").await, 5);
}

/// They give it up while they wait, and get it again.
#[tokio::test(start_paused = true)]
async fn parked_messages_do_not_keep_what_others_are_ready_for() {
    let (service, peak) = (with_orders(0..20).await, Peak::default());
    let notes = (0..50).map(|number| Note {
        text: number.to_string(),
    });
    service.submit_all(notes).await.expect("submitted");
    let router = service
        .router("orders")
        .expect("a name")
        .route(Route::with(peak.clone(), work).max_in_flight(1))
        .handle(async |_: Received<Note>| ())
        .layer(ConcurrencyLimitLayer::new(4));
    let listener = router.start().expect("starts");
    sleep(SECOND * 9 / 10).await;
    let info = listener.info();
    assert_eq!(info.completed, 50, "{info:?}");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), peak.most()), (70, 1));
    stop(listener).await;
}

/// Blocking and async types of one router share its room, and only the blocking ones have threads.
#[tokio::test]
async fn only_the_blocking_types_of_a_router_use_threads() {
    let service = with_orders(0..50).await;
    let notes = (0..20).map(|number| Note {
        text: number.to_string(),
    });
    service.submit_all(notes).await.expect("submitted");
    let (sender, threads) = std::sync::mpsc::channel();
    let router = service
        .router("orders")
        .expect("a name")
        .handle(async |_: Received<Order>| ())
        .route(
            Route::new(blocking(move |_: Received<Note>| {
                let _ = sender.send(std::thread::current().id());
            }))
            .max_in_flight(2),
        )
        .max_in_flight(64)
        .until_empty();
    let listener = router.start().expect("starts");
    assert_eq!(listener.drained().await.info.completed, 70);
    let mut ids: Vec<_> = threads.try_iter().map(|id| format!("{id:?}")).collect();
    assert_eq!(ids.len(), 20);
    ids.sort();
    ids.dedup();
    assert!(ids.len() <= 2, "{ids:?}");
}

/// What waits for room for its data does not keep what others need who have that room.
#[tokio::test(start_paused = true)]
async fn data_that_waits_for_room_keeps_nothing_that_layers_are_ready_for() {
    #[derive(Debug, Serialize, Deserialize, Message)]
    #[message(queue = "texts", compress)]
    struct Text {
        text: String,
    }

    let service = testing::service().await;
    let texts = (0..20).map(|number| Text {
        text: format!("{number} ").repeat(30_000),
    });
    service.submit_all(texts).await.expect("submitted");
    let body = service.backend().capabilities().max_body;
    let listener = service
        .listener(async |_: Received<Text>| sleep(SECOND).await)
        .layer(ConcurrencyLimitLayer::new(1))
        .max_bytes_in_flight(3 * body)
        .tasks(2)
        .start()
        .expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    let info = &drained.listeners[0];
    assert_eq!((info.completed, info.released), (20, 0), "{info:?}");
    assert!(drained.elapsed < 60 * SECOND, "{:?}", drained.elapsed);
    stop(listener).await;
}

/// A message that has waited its turn is not put back because a layer is busy that is around all handlers.
#[tokio::test(start_paused = true)]
async fn a_message_that_has_waited_its_turn_waits_for_the_common_layers_in_its_place() {
    let (service, peak) = (with_orders(0..40).await, Peak::default());
    let notes = (0..200).map(|number| Note {
        text: number.to_string(),
    });
    service.submit_all(notes).await.expect("submitted");
    let router = service
        .router("orders")
        .expect("a name")
        .route(Route::with(peak.clone(), work).max_in_flight(1))
        .handle(async |_: Received<Note>| sleep(SECOND).await)
        .max_in_flight(8)
        .layer(ConcurrencyLimitLayer::new(2));
    let listener = router.start().expect("starts");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!((drained.completed(), peak.most()), (240, 1));
    assert!(drained.elapsed < 300 * SECOND, "{:?}", drained.elapsed);
    stop(listener).await;
}
