//! Settings that change while a listener runs: by its handle, by the queue's metadata, and by the load.

use std::time::Duration;

use queue_runtime::error::Operation;
use queue_runtime::policy::{DepthRules, Idle, IdlePolicy, Rate};
use queue_runtime::settings::{
    ConsumerConfig, MAX_BATCH, MAX_IDLE, MAX_IN_FLIGHT, POISON_THRESHOLD,
};
use queue_runtime::{ListenerHandle, Message, QueueService, Received, testing};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::support::jobs::{Job, submit_jobs};
use crate::support::stop;

async fn for_a_second(_: Received<Job>) {
    sleep(SECOND).await;
}

/// Sets an entry of the queue's metadata, or removes it.
async fn set(service: &QueueService, name: &str, value: Option<&str>) {
    let jobs = service.queue::<Job>().any();
    let mut metadata = jobs.properties().await.expect("read").metadata;
    metadata.remove(name);
    if let Some(value) = value {
        metadata.insert(name, value).expect("valid");
    }
    jobs.set_metadata(&metadata).await.expect("set");
}

/// How many messages might be in flight, at each change, until so many are completed.
async fn limits(listener: &ListenerHandle, completed: usize) -> Vec<usize> {
    let mut limits = Vec::new();
    while listener.info().completed < completed {
        sleep(SECOND / 2).await;
        limits.push(listener.info().in_flight_limit);
    }
    limits.dedup();
    limits
}

#[tokio::test(start_paused = true)]
async fn the_number_of_handlers_follows_the_depth() {
    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(for_a_second).tasks(1).max_in_flight(256);
    let rules = DepthRules::default().of_handlers();
    let listener = listener.scale(rules).start().expect("starts");
    assert_eq!(listener.info().in_flight_limit, 10);

    submit_jobs(&service, 1_500).await;
    assert_eq!(limits(&listener, 1_500).await, [100, 50, 10]);
    let info = listener.info();
    assert_eq!((info.peak_in_flight, info.peak_tasks), (100, 1));
    // It is idle then, and asks at once when there is work.
    sleep(10 * SECOND).await;
    submit_jobs(&service, 500).await;
    assert_eq!(limits(&listener, 2_000).await, [50, 10]);
    sleep(10 * SECOND).await;
    submit_jobs(&service, 90).await;
    assert_eq!(limits(&listener, 2_090).await, [10]);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn rules_of_handlers_are_configured_and_exceed_no_other_limit() {
    let service = testing::service().await;
    submit_jobs(&service, 1_000).await;
    let config: ConsumerConfig = toml::from_str(
        "max_in_flight = 6\nscale = { policy = 'depth', of_handlers = true, steps = [{ below = 100, tasks = 4 }], above = 8 }",
    )
    .expect("valid");
    let listener = service.listener(for_a_second).config(&config);
    let listener = listener.start().expect("starts");
    assert_eq!(limits(&listener, 1_000).await, [6, 4]);
    assert_eq!(listener.info().peak_in_flight, 6);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn the_metadata_of_a_queue_bounds_what_is_in_flight() {
    let service = testing::service().await;
    submit_jobs(&service, 400).await;
    let listener = service.listener(for_a_second).max_in_flight(8);
    let listener = listener.start().expect("starts");
    for (value, in_flight) in [(Some("2"), 2), (Some("100"), 8), (Some("no"), 8), (None, 8)] {
        set(&service, MAX_IN_FLIGHT, value).await;
        sleep(5 * SECOND + SECOND / 2).await;
        let info = listener.info();
        let seen = (info.in_flight, info.in_flight_limit);
        assert_eq!(seen, (in_flight, in_flight), "{value:?}");
    }
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_receive_keeps_to_the_metadata_of_its_queue() {
    let service = testing::service().await;
    submit_jobs(&service, 10).await;
    set(&service, MAX_IN_FLIGHT, Some("1")).await;
    let listener = service.listener(for_a_second).start().expect("starts");
    assert_eq!(limits(&listener, 10).await, [1]);
    assert_eq!(listener.info().peak_in_flight, 1);
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn rules_of_handlers_hold_beside_a_rate_and_begin_again_when_idle() {
    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(for_a_second).tasks(1).max_in_flight(256);
    let rules = DepthRules::default().of_handlers();
    let listener = listener.scale(rules).rate(Rate::per_minute(60_000));
    let listener = listener.start().expect("starts");
    submit_jobs(&service, 1_500).await;
    assert_eq!(limits(&listener, 1_500).await, [100, 50, 10]);

    submit_jobs(&service, 1_500).await;
    sleep(SECOND / 2).await;
    service.queue::<Job>().any().clear().await.expect("cleared");
    sleep(10 * SECOND).await;
    assert_eq!(listener.info().in_flight_limit, 10, "as for an empty queue");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_tells_after_how_many_attempts_a_message_is_poison() {
    #[derive(Serialize, Deserialize, Message)]
    #[message(queue = "jobs", kind = "other")]
    struct Other;

    let service = testing::service().await;
    submit_jobs(&service, 1).await;
    let of_type = service.listener(for_a_second);
    let of_builder = service.listener(for_a_second).poison_threshold(9);
    let [of_type, of_builder] = [of_type, of_builder].map(|one| one.start().expect("starts"));
    assert_eq!(of_type.info().poison_threshold, None, "not read yet");
    sleep(10 * SECOND).await;
    let thresholds = || [&of_type, &of_builder].map(|one| one.info().poison_threshold);
    assert_eq!(thresholds(), [Some(3), Some(9)]);

    set(&service, POISON_THRESHOLD, Some("7")).await;
    submit_jobs(&service, 2).await;
    sleep(10 * SECOND).await;
    assert_eq!(thresholds(), [Some(7), Some(9)]);
    stop(of_type).await;
    stop(of_builder).await;

    set(&service, POISON_THRESHOLD, None).await;
    let router = service.router("jobs").expect("a name").handle(for_a_second);
    let router = router.handle(async |_: Received<Other>| {});
    let router = router.start().expect("starts");
    sleep(10 * SECOND).await;
    assert_eq!(router.info().poison_threshold, None, "3 and 5");
    stop(router).await;
}

#[tokio::test(start_paused = true)]
async fn the_batch_of_a_running_listener_changes() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(for_a_second).tasks(1).max_in_flight(256);
    let listener = listener.idle(Every(600 * SECOND)).start().expect("starts");
    let receives = async || {
        let before = faults.calls(Operation::Receive);
        submit_jobs(&service, 100).await;
        sleep(10 * SECOND).await;
        faults.calls(Operation::Receive) - before
    };
    let together = receives().await;
    assert!(together < 10, "{together}");
    listener.set_batch(5).expect("valid");
    let by_fives = receives().await;
    assert!((20..30).contains(&by_fives), "{by_fives}");
    let refused = listener.set_batch(0).expect_err("none");
    assert!(refused.to_string().contains("per receive"), "{refused}");

    listener.set_batch(100).expect("valid");
    set(&service, MAX_BATCH, Some("5")).await;
    let by_fives = receives().await;
    assert!((20..30).contains(&by_fives), "by the metadata: {by_fives}");
    set(&service, MAX_BATCH, None).await;
    let together = receives().await;
    assert!(together < 10, "{together}");
    assert_eq!(listener.info().completed, 400);
    stop(listener).await;
}

#[derive(Debug)]
struct Every(Duration);

impl IdlePolicy for Every {
    fn delay(&self, _: Idle) -> Duration {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn the_pauses_of_an_idle_listener_change() {
    let service = testing::service().await;
    submit_jobs(&service, 0).await;
    let listener = service.listener(for_a_second).tasks(1);
    let listener = listener.idle(Every(10 * SECOND)).start().expect("starts");
    sleep(65 * SECOND).await;
    assert_eq!(listener.info().empty_receives, 7);
    listener.set_idle(Every(60 * SECOND));
    // The pause that has begun ends at 70 s.
    sleep(600 * SECOND).await;
    assert_eq!(listener.info().empty_receives, 7 + 10);

    set(&service, MAX_IDLE, Some("5s")).await;
    // The metadata is read for the receive after the pause that has begun.
    sleep(60 * SECOND).await;
    let before = listener.info().empty_receives;
    sleep(600 * SECOND).await;
    assert_eq!(listener.info().empty_receives, before + 120);
    stop(listener).await;
}
