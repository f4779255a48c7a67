//! One Azurite for all tests of this process.

use std::sync::LazyLock;

use queue_tests::azurite::Azurite;

/// An account for each test, so that none sees another's messages.
const ACCOUNTS: [&str; 4] = ["quiet", "killed", "secretive", "lost"];

pub(crate) static SERVER: LazyLock<Azurite> = LazyLock::new(|| {
    let started = Azurite::start(&ACCOUNTS);
    started.unwrap_or_else(|error| panic!("{error}"))
});
