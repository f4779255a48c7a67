use std::time::Duration;

use queue_runtime::Received;

use super::Desk;
use crate::messages::CrashOrder;
use crate::usage::Usage;

/// The bytes of payloads that may be in flight.
const IN_FLIGHT: usize = 64 * 1024 * 1024;

/// Long enough for many messages to be received meanwhile.
const WORK: Duration = Duration::from_millis(20);

/// Handles the orders of a queue, which are large, and prints what that has used at most.
pub(super) async fn run(desk: &Desk) {
    let listener = desk.service.listener(async |order: Received<CrashOrder>| {
        tokio::time::sleep(WORK).await;
        assert!(!order.padding.is_empty());
    });
    let listener = listener
        .max_in_flight(256)
        .max_bytes_in_flight(IN_FLIGHT)
        .visibility_timeout(Duration::from_secs(600))
        .until_empty();
    let listener = listener.start().expect("the settings are valid");
    let report = listener.drained().await;
    assert_eq!((report.info.retried, report.info.poisoned), (0, 0));
    println!("{}", Usage::of_this_process());
}
