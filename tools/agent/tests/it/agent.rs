//! An agent starts and stops instances by what is on their queue.

use std::sync::Arc;
use std::time::Duration;

use queue_agent::{
    AgentBuilder, AgentErrorKind, AgentEvent, AgentEventKind, AgentHandle, AgentState, Instance,
    InstanceTarget, Instances,
};
use queue_runtime::error::Operation;
use queue_runtime::testing::{Fault, FaultInjector};
use queue_runtime::{ErrorKind, Failure, ListenerEventKind, QueueName, QueueService};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, sleep};

use crate::support::{InProcess, Job, World, service_on, submit_jobs};

async fn builder(service: &QueueService, range: std::ops::RangeInclusive<usize>) -> AgentBuilder {
    let queue = service.queue::<Job>().any();
    AgentBuilder::new(queue, InstanceTarget::new(range, Duration::from_secs(100)))
}

/// Waits until an event has happened.
async fn until(events: &mut Receiver<AgentEvent>, is: impl Fn(&AgentEventKind) -> bool) {
    loop {
        let event = events.recv().await.expect("the agent runs").kind;
        if is(&event) {
            return;
        }
    }
}

fn scaled_to(number: usize) -> impl Fn(&AgentEventKind) -> bool {
    move |kind| matches!(kind, AgentEventKind::Scaled { to, .. } if *to == number)
}

/// Nothing reaches the storage any more.
fn cut(faults: &FaultInjector) {
    for operation in [
        Operation::Update,
        Operation::Properties,
        Operation::Receive,
        Operation::Browse,
    ] {
        faults.fail_every(operation, Fault::Refused(ErrorKind::Unreachable));
    }
}

async fn stopped(agent: &AgentHandle) {
    agent.shutdown().await;
    assert_eq!(agent.info().state, AgentState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn instances_follow_the_load_from_none_and_back() {
    let world = World::new();
    let service = world.service().await;
    let instances = InProcess::new(&world, 10);
    let agent = builder(&service, 0..=4).await;
    let agent = agent.start(instances.clone()).expect("starts");
    let mut events = agent.events();
    let first = events.recv().await.expect("the agent runs").kind;
    assert_eq!(first, AgentEventKind::Working, "there is no other");
    sleep(Duration::from_secs(600)).await;
    assert_eq!((instances.running(), agent.info().instances.len()), (0, 0));
    submit_jobs(&service, 200).await;
    // What one handles is not known at first.
    until(&mut events, scaled_to(1)).await;
    let begun = Instant::now();
    until(&mut events, scaled_to(4)).await;
    assert!(
        begun.elapsed() < Duration::from_secs(180),
        "{:?}",
        begun.elapsed()
    );
    let why = agent.info().wanted.expect("decided").why;
    assert!(why.contains("messages, the oldest"), "{why}");
    until(&mut events, scaled_to(0)).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(instances.running(), 0);
    let jobs = service.queue::<Job>().any();
    assert_eq!(jobs.properties().await.expect("read").approximate_count, 0);
    let json = serde_json::to_value(agent.info()).expect("JSON");
    assert_eq!(json["wanted"]["instances"], 0, "{json}");
    stopped(&agent).await;
}

#[tokio::test(start_paused = true)]
async fn the_objective_is_broken_with_too_few_workers_and_kept_once_the_agent_adds_some() {
    let world = World::new();
    let service = world.service().await;
    submit_jobs(&service, 1).await;
    // Two arrive while an instance handles one.
    let arriving = service.clone();
    tokio::spawn(async move {
        loop {
            submit_jobs(&arriving, 1).await;
            sleep(Duration::from_secs(1)).await;
        }
    });
    let instances = InProcess::new(&world, 4);
    let few = builder(&service, 1..=1).await;
    let few = few.start(instances.clone()).expect("starts");
    let mut events = few.events();
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::ObjectiveBroken)
    })
    .await;
    stopped(&few).await;

    let queue = service.queue::<Job>().any();
    let policy = InstanceTarget::new(1..=8, Duration::from_secs(60));
    let enough = AgentBuilder::new(queue, policy).start(instances.clone());
    let enough = enough.expect("starts");
    let mut events = enough.events();
    until(
        &mut events,
        |kind| matches!(kind, AgentEventKind::Scaled { to, .. } if *to > 1),
    )
    .await;
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::ObjectiveBroken)
    })
    .await;
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::ObjectiveKept)
    })
    .await;
    // It was a listener that said so.
    let mut of_listeners = Vec::new();
    for events in &mut *instances.events.lock().expect("free") {
        while let Ok(event) = events.try_recv() {
            match event.kind {
                ListenerEventKind::ObjectiveBroken(_) => of_listeners.push("broken"),
                ListenerEventKind::ObjectiveKept(_) => of_listeners.push("kept"),
                _ => {}
            }
        }
    }
    assert!(of_listeners.contains(&"broken") && of_listeners.contains(&"kept"));
    stopped(&enough).await;
}

#[tokio::test(start_paused = true)]
async fn the_dead_are_replaced_after_a_pause() {
    let world = World::new();
    let service = world.service().await;
    let instances = InProcess::new(&world, 1);
    let agent = builder(&service, 2..=2)
        .await
        .interval(Duration::from_secs(1));
    let agent = agent.start(instances.clone()).expect("starts");
    let mut events = agent.events();
    let started = |kind: &AgentEventKind| matches!(kind, AgentEventKind::Started { .. });
    until(&mut events, started).await;
    until(&mut events, started).await;
    for pause in [500, 1_000, 2_000] {
        instances.kill();
        until(&mut events, |kind| match kind {
            AgentEventKind::Died {
                ended, pause: of, ..
            } => {
                assert_eq!(*of, Duration::from_millis(pause));
                assert_eq!(ended.as_ref().expect("known").how, "signal: 9");
                true
            }
            _ => false,
        })
        .await;
        until(&mut events, started).await;
    }
    assert_eq!(instances.running(), 2);
    stopped(&agent).await;
    assert_eq!(instances.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_agent_of_a_queue_works_and_another_takes_over_when_it_is_gone() {
    let world = World::new();
    let faults = Arc::new(FaultInjector::new(Arc::clone(&world.0)));
    let cut_off = service_on(faults.clone()).await;
    let (one, other) = (InProcess::new(&world, 1), InProcess::new(&world, 1));
    let first = builder(&cut_off, 1..=1).await;
    let first = first.start(one.clone()).expect("starts");
    let mut of_first = first.events();
    until(&mut of_first, |kind| {
        matches!(kind, AgentEventKind::Working)
    })
    .await;

    let service = world.service().await;
    let second = builder(&service, 1..=1).await;
    let second = second.start(other.clone()).expect("starts");
    let mut of_second = second.events();
    until(&mut of_second, |kind| {
        matches!(kind, AgentEventKind::Waiting)
    })
    .await;
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!((one.running(), other.running()), (1, 0));
    assert_eq!(second.info().state, AgentState::Waiting);

    // It does not reach the storage any more, as if it had been killed, until later.
    cut(&faults);
    until(&mut of_first, |kind| {
        matches!(kind, AgentEventKind::Blind { .. })
    })
    .await;
    let begun = Instant::now();
    until(&mut of_second, |kind| {
        matches!(kind, AgentEventKind::Started { .. })
    })
    .await;
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    // It learns of the other with the storage.
    faults.heal();
    until(&mut of_first, |kind| {
        matches!(kind, AgentEventKind::Replaced)
    })
    .await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!((one.running(), other.running()), (0, 1));
    assert!(first.info().wanted.is_none());

    // Given back, it is taken at once.
    stopped(&second).await;
    until(&mut of_first, |kind| {
        matches!(kind, AgentEventKind::Started { .. })
    })
    .await;
    stopped(&first).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_while_the_storage_is_away_but_the_dead_are_replaced_at_first() {
    let world = World::new();
    let faults = Arc::new(FaultInjector::new(Arc::clone(&world.0)));
    let service = service_on(faults.clone()).await;
    let instances = InProcess::new(&world, 10);
    submit_jobs(&service, 10_000).await;
    let agent = builder(&service, 0..=4).await;
    let agent = agent.start(instances.clone()).expect("starts");
    let mut events = agent.events();
    until(&mut events, scaled_to(4)).await;
    sleep(Duration::from_secs(60)).await;
    cut(&faults);
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::Blind { .. })
    })
    .await;
    instances.kill();
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::Started { .. })
    })
    .await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(instances.running(), 4);
    assert!(agent.info().failure.is_some());
    // Another agent may be at work.
    instances.kill();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(instances.running(), 3);
    faults.heal();
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::Started { .. })
    })
    .await;
    assert!(agent.info().failure.is_none());
    stopped(&agent).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_of_a_renewal_stops_no_instance() {
    let world = World::new();
    let faults = Arc::new(FaultInjector::new(Arc::clone(&world.0)));
    let service = service_on(faults.clone()).await;
    let instances = InProcess::new(&world, 10);
    let agent = builder(&service, 2..=2).await;
    let agent = agent.start(instances.clone()).expect("starts");
    sleep(Duration::from_secs(60)).await;
    let mut events = agent.events();
    faults.fail_next(1, Operation::Update, Fault::AnswerLost);
    sleep(Duration::from_secs(600)).await;
    while let Ok(event) = events.try_recv() {
        let kind = event.kind;
        assert!(matches!(kind, AgentEventKind::Blind { .. }), "{kind:?}");
    }
    assert_eq!(agent.info().state, AgentState::Working);
    assert_eq!((instances.running(), agent.info().failure), (2, None));
    stopped(&agent).await;
}

/// Its rate is not known yet, so that the number stays as it is.
#[tokio::test(start_paused = true)]
async fn the_dead_are_replaced_while_nothing_is_known() {
    let world = World::new();
    let service = world.service().await;
    let instances = InProcess::new(&world, 100_000);
    submit_jobs(&service, 1_000).await;
    let agent = builder(&service, 3..=4).await;
    let agent = agent.start(instances.clone()).expect("starts");
    sleep(Duration::from_secs(10)).await;
    for _ in 0..3 {
        instances.kill();
        instances.kill();
        sleep(Duration::from_secs(120)).await;
        assert!(instances.running() >= 3, "{}", instances.running());
    }
    stopped(&agent).await;
}

#[test]
fn a_shutdown_does_not_wait_for_a_runtime_that_has_ended() {
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime")
    };
    let of_agent = runtime();
    let agent = of_agent.block_on(async {
        let service = crate::support::memory().await;
        let policy = InstanceTarget::new(0..=1, Duration::from_secs(1));
        let agent = AgentBuilder::new(service.queue::<Job>().any(), policy);
        agent.grace(Duration::MAX).advise().expect("starts")
    });
    drop(of_agent);
    runtime().block_on(agent.shutdown());
}

/// An agent without instances of its own.
#[tokio::test(start_paused = true)]
async fn advice_is_read_as_json() {
    let world = World::new();
    let service = world.service().await;
    submit_jobs(&service, 1_000).await;
    let policy = InstanceTarget::new(0..=10, Duration::from_secs(100)).with_rate(4.0);
    let agent = AgentBuilder::new(service.queue::<Job>().any(), policy);
    let agent = agent.advise().expect("starts");
    sleep(Duration::from_secs(10)).await;
    let json = serde_json::to_value(agent.info()).expect("JSON");
    assert_eq!(json["wanted"]["instances"], 3, "{json}");
    assert_eq!(json["queue"], "jobs");
    service
        .any_queue("jobs")
        .expect("a name")
        .clear()
        .await
        .expect("cleared");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(agent.info().wanted.expect("decided").instances, 0);
    stopped(&agent).await;
}

/// Instances whose calls panic.
struct Panicking(u32);

#[async_trait::async_trait]
impl Instances for Panicking {
    async fn start(&mut self, _: &[QueueName]) -> Result<String, Failure> {
        self.0 += 1;
        assert!(self.0 > 2, "of the platform");
        Ok(self.0.to_string())
    }

    async fn stop(&mut self, _: &str, _: Duration) -> Result<(), Failure> {
        Ok(())
    }

    async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
        Ok(Vec::new())
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_goes_on_after_a_panic_of_its_instances() {
    let world = World::new();
    let service = world.service().await;
    let agent = builder(&service, 1..=1).await;
    let agent = agent.start(Panicking(0)).expect("starts");
    let mut events = agent.events();
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::Panicked { .. })
    })
    .await;
    until(&mut events, |kind| {
        matches!(kind, AgentEventKind::Started { .. })
    })
    .await;
    stopped(&agent).await;
}

#[tokio::test(start_paused = true)]
async fn messages_on_the_queue_of_the_lock_stay_there() {
    let world = World::new();
    let service = world.service().await;
    let lock = service.any_queue("jobs-agent-lock").expect("a name");
    lock.create().await.expect("created");
    let named = service
        .queue_named::<Job>("jobs-agent-lock")
        .expect("a name");
    named.submit(Job {}).await.expect("submitted");
    let agent = builder(&service, 1..=1).await;
    let agent = agent.start(InProcess::new(&world, 1)).expect("starts");
    let mut events = agent.events();
    until(&mut events, |kind| match kind {
        AgentEventKind::Blind { error } => {
            assert!(error.contains("a lock needs a queue of its own"), "{error}");
            true
        }
        _ => false,
    })
    .await;
    stopped(&agent).await;
    assert!(named.accept().await.expect("accepted").is_some());
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let service = crate::support::memory().await;
    let queue = || service.queue::<Job>().any();
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let empty = AgentBuilder::new(queue(), InstanceTarget::new(3..=2, Duration::from_secs(1)));
    let error = empty.advise().expect_err("refused");
    assert!(
        matches!(error.kind, AgentErrorKind::Setting { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("maximum number of instances"));
    let target = InstanceTarget::new(0..=1, Duration::from_secs(1));
    let hasty = AgentBuilder::new(queue(), target).interval(Duration::ZERO);
    let error = hasty.advise().expect_err("refused").to_string();
    assert!(error.contains("interval of an agent is 0ns"), "{error}");
    let long = service.any_queue("q".repeat(60)).expect("a name");
    let error = AgentBuilder::new(long, target)
        .advise()
        .expect_err("refused");
    assert!(matches!(error.kind, AgentErrorKind::Name(_)), "{error:?}");
}
