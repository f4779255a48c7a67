use super::Desk;
use crate::messages::{CrashOrder, LONG_LEASE};
use crate::usage::Usage;

/// Completes orders, one by one, and prints what that has used: once before the first, and once after the last.
pub(super) async fn run(desk: &Desk, orders: u32) {
    // Opens everything that a receive needs.
    let queue = desk.service.queue::<CrashOrder>();
    queue.any().properties().await.expect("the storage works");
    println!("{}", Usage::of_this_process());
    for _ in 0..orders {
        let accept = desk.service.accept::<CrashOrder>();
        let accept = accept.visibility_timeout(LONG_LEASE);
        let accepted = accept.await.expect("the storage works");
        let delivery = accepted.expect("there are enough orders");
        delivery.complete().await.expect("the storage works");
    }
    println!("{}", Usage::of_this_process());
}
