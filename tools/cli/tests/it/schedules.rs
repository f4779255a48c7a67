//! `queues schedules`.

use std::time::{Duration, Instant};

use queue_runtime::QueueService;
use queue_runtime::recurring::{Overlap, ScheduleHandle, every};
use queue_tests::orders::ShopOrder;

use crate::support::Storage;

/// What only a hang reaches.
const GUARD: Duration = Duration::from_secs(300);

fn hourly(service: &QueueService) -> ScheduleHandle {
    let hour = Duration::from_secs(3600);
    let schedule = service.schedule("hourly", every(hour), |_| ShopOrder { number: 1 });
    schedule.overlap(Overlap::Skip).start().expect("started")
}

#[tokio::test]
async fn schedules_are_listed_paused_run_and_forgotten() {
    let storage = Storage::new();
    let service = storage.service().await;
    hourly(&service).stop().await;
    assert_eq!(storage.json(&["schedules"])[0]["schedule"], "hourly");
    assert!(storage.out(&["schedules", "list"]).contains("hourly"));

    storage.out(&["schedules", "pause", "hourly"]);
    storage.out(&["schedules", "run", "hourly"]);
    let listed = storage.out(&["schedules"]);
    assert!(listed.contains("paused; a run is asked for"), "{listed}");
    storage.out(&["schedules", "resume", "hourly"]);
    let known = &storage.json(&["schedules"])[0];
    assert_eq!(known["is_paused"], false);
    assert!(known["run_asked_at"].is_string(), "{known}");

    for what in ["pause", "resume", "run"] {
        let refused = storage.run(&["schedules", what, "daily"]);
        refused.failed(3, "no schedule `daily`");
    }
    storage.out(&["schedules", "reset", "hourly", "--yes"]);
    storage.out(&["schedules", "forget", "hourly", "--yes"]);
    storage
        .run(&["schedules", "forget", "hourly", "--yes"])
        .failed(3, "no schedule `hourly`");
}

/// The schedule looks for a run at its start, which is sooner than within 30 seconds.
#[tokio::test]
async fn a_run_is_submitted_unless_the_one_before_is_not_settled() {
    let storage = Storage::new();
    let service = storage.service().await;
    hourly(&service).stop().await;
    for submitted in [true, false, true] {
        storage.out(&["schedules", "run", "hourly"]);
        let schedule = hourly(&service);
        let begun = Instant::now();
        while !storage.json(&["schedules"])[0]["run_asked_at"].is_null() {
            assert!(begun.elapsed() < GUARD, "nobody has submitted the run");
            tokio::task::yield_now().await;
        }
        schedule.stop().await;
        let orders = &storage.json(&["list"])[0];
        assert_eq!(orders["messages"], 1, "{orders}");
        if !submitted {
            let order = service.accept::<ShopOrder>().await.expect("accepts");
            order.expect("the first").complete().await.expect("done");
        }
    }
    assert_eq!(storage.json(&["list"])[0]["totals"]["put"], 2);
}
