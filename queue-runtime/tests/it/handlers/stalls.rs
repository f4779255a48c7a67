//! A handler that holds up its runtime.

use std::thread;
use std::time::Instant;

use queue_runtime::Received;
use queue_tests::{SECOND, is_alone};

use crate::support::jobs::{Job, completed, submit_jobs};
use crate::support::log::Log;
use crate::support::{GUARD, events, memory, stop};

const TOLD: &str = "a handler probably blocks its thread";

#[tokio::test]
async fn a_handler_that_blocks_the_runtime_is_told_with_the_remedy() {
    if !is_alone("handlers::stalls::a_handler_that_blocks_the_runtime_is_told_with_the_remedy") {
        return;
    }
    let log = Log::of_process();
    let service = memory().await;
    submit_jobs(&service, 2).await;
    let seen_by_handler = log.clone();
    let listener = service.listener(move |_: Received<Job>| {
        let log = seen_by_handler.clone();
        async move {
            let started = Instant::now();
            while log.count(TOLD) == 0 {
                assert!(started.elapsed() < GUARD, "{:?}", log.lines());
                thread::sleep(SECOND / 100);
            }
        }
    });
    let mut seen = listener.events();
    let listener = listener.start().expect("starts");
    events(&mut seen, 2, completed).await;
    assert_eq!(log.count(TOLD), 1, "{:?}", log.lines());
    let line = log.line(TOLD);
    for part in [
        "queue=jobs",
        "late_ms=",
        "queue_runtime::blocking",
        "spawn_blocking",
    ] {
        assert!(line.contains(part), "{line}");
    }
    stop(listener).await;
}
