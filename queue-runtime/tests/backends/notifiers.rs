//! The notifiers of the local engines under their conformance suite.

mod memory {
    use queue_core::conformance::OfBackend;
    use queue_core::conformance::notify::Arming;

    use crate::memory::MemoryHarness;

    queue_core::notifier_tests!(OfBackend::new(MemoryHarness::new()).arming(Arming::Always));
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use queue_core::conformance::OfBackend;

    use crate::sqlite::conformance::SqliteHarness;

    queue_core::notifier_tests!(OfBackend::new(SqliteHarness));
}
