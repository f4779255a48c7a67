//! The memory backend keeps the contract.

mod support;

use support::memory::MemoryHarness;

queue_core::conformance_tests!(MemoryHarness::new());
