//! A fault injector without faults under the conformance suite: it passes everything on.

use std::sync::Arc;

use queue_runtime::testing::FaultInjector;

use crate::memory::MemoryHarness;

fn harness() -> MemoryHarness {
    let mut harness = MemoryHarness::new();
    harness.wrap = Arc::new(|memory| Arc::new(FaultInjector::new(Arc::new(memory))));
    harness
}

queue_core::conformance_tests!(harness());
