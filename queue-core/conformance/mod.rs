//! Test suites for what a storage engine implements.
//!
//! | suite | for | macro |
//! |---|---|---|
//! | this module | [`Backend`](crate::backend::Backend) | [`conformance_tests!`](crate::conformance_tests) |
//! | [`idempotency`] | [`ResultStore`](crate::idempotency::ResultStore), as from [`results`](crate::backend::Backend::results) | [`result_store_tests!`](crate::result_store_tests) |
//! | [`notify`] | [`Notifier`](crate::notify::Notifier), as from [`notifier`](crate::backend::Backend::notifier) | [`notifier_tests!`](crate::notifier_tests) |
//! | [`payloads`] | [`PayloadStore`](crate::payload_store::PayloadStore) | [`payload_store_tests!`](crate::payload_store_tests) |
//! | [`transactions`] | [transactions](crate::backend::Backend::transactions) of the application's | [`transaction_tests!`](crate::transaction_tests) |
//!
//! An engine's tests implement the `Harness` of a suite, with the store that it opens, and call its macro, which generates a `#[test]`
//! for each function listed in the suite: a test added to it runs for all engines. [`OfBackend`] makes a backend's
//! harness one for its results and its notifier. Where a backend's [`Capabilities`](crate::backend::Capabilities) or the
//! opened stores differ, the suite checks that difference.

#[doc(hidden)]
pub mod backend;
pub mod idempotency;
pub mod notify;
mod of_backend;
pub mod payloads;
mod suite;
pub mod transactions;

pub use backend::*;
pub use of_backend::OfBackend;
