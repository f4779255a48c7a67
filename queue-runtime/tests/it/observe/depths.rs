//! The depths of listeners' queues and of their poison queues are metrics without further ado.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use queue_runtime::backend::MemoryBackend;
use queue_runtime::error::Operation;
use queue_runtime::meter::TransactionKind;
use queue_runtime::testing::{self, Fault, TokioClock};
use queue_runtime::{ErrorKind, Failure, ListenerHandle, QueueService, Received};
use queue_tests::orders::ShopOrder;
use queue_tests::{MINUTE, SECOND};
use tokio::time::sleep;

use crate::observe::fixture::Scrape;

const DEPTH: &str = r#"queue_depth{messaging_destination_name="orders"}"#;
const POISON: &str = r#"queue_poison_depth{messaging_destination_name="orders"}"#;

async fn sampling_every(interval: Duration) -> QueueService {
    let clock = Arc::new(TokioClock::new());
    let memory = Arc::new(MemoryBackend::new(clock.clone()));
    let service = QueueService::with_backend(memory)
        .clock(clock)
        .on_current_runtime();
    let service = service.depth_metrics(interval).connect().await;
    service.expect("connects")
}

/// Starts a listener that rejects orders.
fn listen(service: &QueueService) -> ListenerHandle {
    let listener =
        service.listener(async |_: Received<ShopOrder>| Err::<(), _>(Failure::reject("no")));
    listener.start().expect("starts")
}

async fn stop(listener: ListenerHandle) {
    assert!(listener.shutdown(MINUTE).await.graceful);
}

async fn submit(service: &QueueService, delay: Duration) {
    let orders = (0..3).map(|number| ShopOrder { number });
    let submitted = service.submit_all(orders).delay(delay).await;
    submitted.expect("submitted");
}

#[tokio::test(start_paused = true)]
async fn the_depths_of_a_queue_and_its_poison_queue_are_sampled() {
    let scrape = Scrape::start();
    let (service, faults) = testing::service_with_faults().await;
    let listener = listen(&service);
    submit(&service, 3600 * SECOND).await;
    sleep(MINUTE).await;
    assert_eq!(scrape.value(DEPTH), Some(3.0), "none is visible");
    // The poison queue does not exist yet.
    assert_eq!(scrape.value(POISON), Some(0.0));
    assert_eq!(listener.info().depth, Some(3));
    submit(&service, Duration::ZERO).await;
    sleep(MINUTE).await;
    assert_eq!(scrape.value(DEPTH), Some(3.0));
    assert_eq!(scrape.value(POISON), Some(3.0));

    faults.fail_every(Operation::Properties, Fault::Refused(ErrorKind::Storage));
    sleep(MINUTE).await;
    for depth in [DEPTH, POISON] {
        let unknown = scrape.value(depth).expect("a value");
        assert!(unknown.is_nan(), "{unknown} is not known");
    }
    faults.heal();
    sleep(MINUTE).await;
    assert_eq!(scrape.value(DEPTH), Some(3.0));
    stop(listener).await;
    assert!(scrape.value(DEPTH).expect("a value").is_nan());
}

#[tokio::test(start_paused = true)]
async fn one_listener_of_a_service_samples_for_all_of_a_queue() {
    let scrape = Scrape::start();
    let service = sampling_every(10 * MINUTE).await;
    let listeners = [listen(&service), listen(&service), listen(&service)];
    sleep(MINUTE).await;
    let before = service.meter();
    sleep(100 * MINUTE).await;
    let poison = service
        .meter()
        .since(&before)
        .queue("orders-poison")
        .expect("a name");
    let read = poison.of(TransactionKind::Properties);
    assert!((8..=13).contains(&read), "{read} in ten intervals");
    let [first, rest @ ..] = listeners;
    stop(first).await;
    sleep(20 * MINUTE).await;
    assert_eq!(scrape.value(DEPTH), Some(0.0), "another one goes on");
    for listener in rest {
        stop(listener).await;
    }
    let service = QueueService::builder("memory:").depth_metrics(Duration::ZERO);
    let error = service.connect().await.expect_err("too short").to_string();
    assert!(
        error.contains("interval of depth metrics is 0ns"),
        "{error}"
    );
}

/// As on Azure without `depth_metrics`. It would stay at an old value.
#[tokio::test(start_paused = true)]
async fn a_depth_that_is_not_sampled_is_no_metric() {
    let scrape = Scrape::start();
    let service = sampling_every(24 * 60 * MINUTE).await;
    let listener = listen(&service);
    submit(&service, 3600 * SECOND).await;
    assert_eq!(listener.depth().await.expect("read"), 3);
    assert_eq!(scrape.value(DEPTH), None);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_recorder_no_depth_is_read() {
    let service = testing::service().await;
    let listener = listen(&service);
    sleep(10 * MINUTE).await;
    let poison = service.meter().queue("orders-poison").expect("a name");
    assert_eq!(poison.of(TransactionKind::Properties), 0);
    stop(listener).await;
}

/// Those of `PrometheusBuilder::with_recommended_naming` are the same: no suffix is added twice.
#[tokio::test(start_paused = true)]
async fn metrics_have_the_names_that_prometheus_expects() {
    let run = async |exporter| {
        let scrape = Scrape::of(exporter);
        let service = testing::service().await;
        let listener = listen(&service);
        submit(&service, Duration::ZERO).await;
        sleep(MINUTE).await;
        stop(listener).await;
        let name = |line: String| line.split('{').next().expect("a name").to_owned();
        let mut names: Vec<_> = scrape.lines().into_iter().map(name).collect();
        names.dedup();
        names
    };
    let plain = run(PrometheusBuilder::new()).await;
    let recommended = PrometheusBuilder::new().with_recommended_naming(true);
    assert_eq!(plain, run(recommended).await);
    for name in [
        "messaging_client_consumed_messages_total",
        "messaging_client_sent_messages_total",
        "messaging_process_duration_seconds_sum",
        "queue_depth",
        "queue_message_lag_seconds_sum",
        "queue_poison_depth",
        "queue_settled_messages_total",
        "queue_transactions_total",
    ] {
        assert!(plain.iter().any(|one| one == name), "{name} in {plain:?}");
    }
}
