//! An Azurite that the tests of services in this process share.

use std::sync::LazyLock;

use queue_tests::azurite::Azurite;
use tokio::runtime::{Builder, Runtime};

pub(crate) const ACCOUNT: &str = "conformance";
pub(crate) const SECOND_ACCOUNT: &str = "conformance2";

pub(crate) static SERVER: LazyLock<Azurite> = LazyLock::new(start);

pub(crate) fn start() -> Azurite {
    let started = Azurite::start(&[ACCOUNT, SECOND_ACCOUNT]);
    started.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn connection_string() -> String {
    SERVER.connection_string(ACCOUNT)
}

/// One for each test, whose connections end with it.
pub(crate) fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build();
    runtime.expect("threads start")
}
