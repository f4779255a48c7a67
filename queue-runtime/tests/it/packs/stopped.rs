//! A process is stopped while it holds a pack, and goes on after another one has handled that.

use std::sync::Arc;

use queue_runtime::clock::ManualClock;
use tokio::runtime::{Builder, Runtime};

use crate::packs::support::{BOTH, VISIBILITY, World, accept, depth, submit};

/// A process runs only while its runtime does.
fn runtime() -> Runtime {
    let built = Builder::new_current_thread().build();
    built.expect("a runtime")
}

#[test]
fn an_item_is_not_put_back_by_a_process_that_has_lost_its_pack() {
    for marks in BOTH {
        let clock = Arc::new(ManualClock::new());
        let world = World::with_clock(marks, Arc::clone(&clock) as _);
        let stopped = runtime();
        let (process, held) = stopped.block_on(async {
            let process = world.process().await;
            submit(&process.service, 0..10).await;
            let held = accept(&process.service).await;
            (process, held)
        });
        clock.advance(VISIBILITY * 3);
        runtime().block_on(async {
            let other = world.service().await;
            for number in 0..10 {
                let delivery = accept(&other).await;
                assert_eq!((delivery.number, delivery.attempt()), (number, 1));
                delivery.complete().await.expect("completed");
            }
        });
        stopped.block_on(async {
            let put_back = held.retry("too late").await;
            put_back.expect_err("the lease has ended");
            assert_eq!(depth(&process.service).await, 0, "{marks:?}");
        });
    }
}
