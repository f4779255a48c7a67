//! Processes that die, or stop for longer than everything else waits, between any two requests.

use crate::payloads::scenes::{SCENES, interrupt};
use crate::payloads::support::World;

async fn interrupt_everywhere(comes_back: bool) {
    for scene in SCENES {
        let mut requests = 0;
        while interrupt(World::new(), &scene, requests, comes_back).await {
            requests += 1;
        }
        assert!(requests > 2, "{} made {requests} requests", scene.name);
        println!("{}: interrupted at {requests} points", scene.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_dies_between_any_two_requests() {
    interrupt_everywhere(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_stops_for_long_between_any_two_requests() {
    interrupt_everywhere(true).await;
}
