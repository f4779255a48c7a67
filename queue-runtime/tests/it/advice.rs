//! How many instances of the program a listener advises to run.

use std::time::Duration;

use queue_runtime::policy::InstanceTarget;
use queue_runtime::testing::{self, Fault};
use queue_runtime::{
    ConsumerConfig, ErrorKind, ListenerEvent, ListenerEventKind, Operation, Received, StartError,
};
use tokio::time::sleep;

use crate::support::jobs::{Job, submit_jobs};
use crate::support::{NEVER, stop};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the numbers that were advised.
fn advised(events: &mut tokio::sync::broadcast::Receiver<ListenerEvent>) -> Vec<usize> {
    let mut all = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let ListenerEventKind::InstancesAdvised { from, to } = event.kind {
            assert_ne!(from, to);
            all.push(to);
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn instances_are_advised_by_depth_and_handler_time_until_nothing_is_left() {
    let service = testing::service().await;
    submit_jobs(&service, 100).await;
    let target = InstanceTarget::new(0..=4, 100 * SECOND);
    // Two at a time, of ten seconds each: 500 seconds alone. With a fixed number of tasks, nothing is scaled.
    let listener = service.listener(async |_: Received<Job>| sleep(10 * SECOND).await);
    let listener = listener.tasks(1).max_in_flight(2).handler_timeout(NEVER);
    let listener = listener.advise_instances(target);
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    assert_eq!(listener.info().wanted_instances, Some(0));
    sleep(5 * SECOND).await;
    assert_eq!(
        listener.info().wanted_instances,
        Some(1),
        "no time is known yet"
    );
    sleep(15 * SECOND).await;
    assert_eq!(listener.info().wanted_instances, Some(4));
    sleep(600 * SECOND).await;
    assert_eq!(listener.info().completed, 100);
    assert_eq!(listener.info().wanted_instances, Some(0));
    let advised = advised(&mut events);
    assert_eq!(
        (advised.first(), advised.last()),
        (Some(&1), Some(&0)),
        "{advised:?}"
    );
    let before = listener.info().transactions.total();
    sleep(SECOND / 2).await;
    let idle = listener.info().transactions.total() - before;
    assert!(idle <= 5, "only polls are left: {idle}");
    stop(listener).await;
}

/// More tasks than the listener was built with bring no more messages in flight than it allows.
#[tokio::test(start_paused = true)]
async fn more_tasks_bring_no_more_in_flight_than_the_maximum() {
    let service = testing::service().await;
    submit_jobs(&service, 400).await;
    let target = InstanceTarget::new(0..=100, 100 * SECOND);
    let listener = service.listener(async |_: Received<Job>| sleep(10 * SECOND).await);
    let listener = listener.tasks(2).max_in_flight(2).handler_timeout(NEVER);
    let listener = listener.advise_instances(target).start().expect("starts");
    listener.scale(8..=8).expect("a number of tasks");
    sleep(30 * SECOND).await;
    assert_eq!(listener.info().peak_in_flight, 2);
    // About 396 messages of 10 seconds in what is left of 100 seconds: 40 in flight at least, 2 by each instance.
    let wanted = listener.info().wanted_instances.expect("advised");
    assert!((20..=30).contains(&wanted), "{wanted}");
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_changes_no_advice() {
    let (service, faults) = testing::service_with_faults().await;
    submit_jobs(&service, 1000).await;
    let target = InstanceTarget::new(1..=9, 10 * SECOND);
    let listener = service.listener(async |_: Received<Job>| sleep(SECOND).await);
    let listener = listener
        .tasks(1..=2)
        .max_in_flight(2)
        .advise_instances(target);
    let listener = listener.start().expect("starts");
    sleep(20 * SECOND).await;
    assert_eq!(listener.info().wanted_instances, Some(9));
    for operation in [Operation::Properties, Operation::Receive] {
        faults.fail_every(operation, Fault::Refused(ErrorKind::Unreachable));
    }
    sleep(600 * SECOND).await;
    assert_eq!(listener.info().wanted_instances, Some(9));
    faults.heal();
    stop(listener).await;
}

#[tokio::test(start_paused = true)]
async fn it_is_set_by_a_configuration() {
    let service = testing::service().await;
    let text = "advise_instances = { instances = { min = 2, max = 4 }, target = '90s' }";
    let config: ConsumerConfig = toml::from_str(text).expect("valid");
    let target = InstanceTarget::new(2..=4, 90 * SECOND);
    assert_eq!(config.advise_instances, Some(target));
    let written = serde_json::to_string(&config).expect("JSON");
    let read: ConsumerConfig = serde_json::from_str(&written).expect("valid");
    assert_eq!(read, config);
    let listener = || service.listener(async |_: Received<Job>| {}).create_queue();
    let configured = listener().config(&config).start().expect("starts");
    assert_eq!(configured.info().wanted_instances, Some(2));
    stop(configured).await;
    // A configuration without it leaves it as it is.
    let called = listener().advise_instances(target);
    let called = called.config(&ConsumerConfig::default()).start();
    let called = called.expect("starts");
    assert_eq!(called.info().wanted_instances, Some(2));
    stop(called).await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_range_is_refused() {
    let service = testing::service().await;
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let target = InstanceTarget::new(3..=2, SECOND);
    let listener = service.listener(async |_: Received<Job>| {});
    let refused = listener.advise_instances(target).start();
    let error = refused.expect_err("refused");
    assert!(matches!(error, StartError::Setting(_)), "{error:?}");
    assert!(
        error.to_string().contains("maximum number of instances"),
        "{error}"
    );
}
