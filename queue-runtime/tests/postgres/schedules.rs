//! Schedules whose ticks and keys are recorded in a database.

use std::time::{Duration, Instant};

use queue_runtime::QueueService;
use queue_runtime::recurring::{Overlap, ScheduleHandle, every};
use queue_tests::orders::ShopOrder;

use crate::bank::Bank;

/// What only a hang reaches.
const GUARD: Duration = Duration::from_secs(300);

fn hourly(service: &QueueService, overlap: Overlap) -> ScheduleHandle {
    let hour = Duration::from_secs(3600);
    let schedule = service.schedule("hourly", every(hour), |_| ShopOrder { number: 1 });
    schedule.overlap(overlap).start().expect("starts")
}

/// Has a schedule submit its message once more, at a start, when it looks for that.
async fn run(service: &QueueService, overlap: Overlap) {
    assert!(service.run_schedule("hourly").await.expect("asked"));
    let schedule = hourly(service, overlap);
    let begun = Instant::now();
    loop {
        let page = service.recorded_schedules(None, 1).await;
        if page.expect("a page").schedules[0].run_asked_at.is_none() {
            break;
        }
        assert!(begun.elapsed() < GUARD, "no process has submitted the run");
        tokio::task::yield_now().await;
    }
    schedule.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_skipped_or_wait_for_each_other() {
    let service = Bank::open().await.other_service().await;
    hourly(&service, Overlap::Allow).stop().await;
    let accept = async || service.accept::<ShopOrder>().await.expect("accepts");

    assert!(service.pause_schedule("hourly").await.expect("paused"));
    run(&service, Overlap::Skip).await;
    run(&service, Overlap::Skip).await;
    let first = accept().await.expect("the first");
    assert!(accept().await.is_none(), "the second was skipped");
    first.complete().await.expect("completed");

    run(&service, Overlap::Wait).await;
    run(&service, Overlap::Wait).await;
    let first = accept().await.expect("the first");
    assert!(accept().await.is_none(), "the second waits");
    first.complete().await.expect("completed");
    accept()
        .await
        .expect("the second")
        .complete()
        .await
        .expect("completed");
}
