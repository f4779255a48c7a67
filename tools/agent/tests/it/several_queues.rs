//! An agent whose instances work on several queues.

use std::time::Duration;

use queue_agent::{AgentBuilder, BusyHours, InstanceTarget, Report};
use queue_runtime::Received;
use tokio::time::sleep;

use crate::support::{GUARD, Job, World, submit_jobs};

#[tokio::test(start_paused = true)]
async fn an_agent_of_several_queues_counts_what_is_on_them_unless_it_is_paused() {
    let world = World::new();
    let service = world.service().await;
    submit_jobs(&service, 100).await;
    let [jobs, mails] = ["jobs", "mails"].map(|name| service.any_queue(name).expect("a name"));
    mails.create().await.expect("created");
    let typed = service.queue_named::<Job>("mails").expect("a name");
    typed
        .submit_all((0..20).map(|_| Job {}))
        .await
        .expect("submitted");

    let policy = InstanceTarget::new(0..=10, Duration::from_secs(100)).with_rate(1.0);
    let policy = BusyHours::new(policy, "UTC").expect("a zone");
    let policy = policy.at_least(7, "00:00-24:00").expect("hours");
    let agent = AgentBuilder::new(jobs.clone(), policy).also(mails.clone());
    let agent = agent.advise().expect("starts");
    let depth = async || {
        sleep(Duration::from_secs(6)).await;
        let info = agent.info();
        assert_eq!(info.queue.as_str(), "jobs");
        assert_eq!(info.wanted.expect("decided").instances, 7);
        let load = info.load.expect("read");
        assert_eq!(Some(load.now), info.looked_at);
        load.depth
    };
    assert_eq!(depth().await, 120);
    jobs.pause(None).await.expect("paused");
    assert_eq!(depth().await, 20);
    mails.pause(None).await.expect("paused");
    assert_eq!(depth().await, 120, "they wait");
    jobs.resume().await.expect("resumed");
    assert_eq!(depth().await, 100);
    agent.shutdown().await;
}

#[tokio::test]
async fn a_report_sums_up_the_listeners_of_the_agents_queues() {
    let service = World::new().service().await;
    for (queue, room) in [("jobs", 2), ("mails", 3), ("others", 5)] {
        let typed = service.queue_named::<Job>(queue).expect("a name");
        let listener = typed.listener(async |_: Received<Job>| std::future::pending::<()>().await);
        listener
            .max_in_flight(room)
            .create_queue()
            .start()
            .expect("starts");
    }
    let report = |queues: &[&str]| Report::of(&service, queues.iter().copied());
    let room = |queues: &[&str]| report(queues).in_flight_limit;
    assert_eq!((room(&["jobs"]), room(&["jobs", "mails"])), (2, 5));
    assert_eq!(report(&["jobs", "mails"]).is_full, Some(false));
    submit_jobs(&service, 2).await;
    let begun = std::time::Instant::now();
    while report(&["jobs", "mails"]).is_full != Some(true) {
        assert!(begun.elapsed() < GUARD, "one listener of two is full");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(report(&["mails"]).is_full, Some(false));
}
