//! The Azurite that all tests of this process share.

use std::sync::LazyLock;

use queue_tests::azurite::Azurite;

/// One account per test, so that tests do not see each other's messages.
const ACCOUNTS: [&str; 4] = ["quiet", "killed", "secretive", "library"];

pub(crate) static SERVER: LazyLock<Azurite> = LazyLock::new(|| {
    let started = Azurite::start(&ACCOUNTS);
    started.unwrap_or_else(|error| panic!("{error}"))
});
