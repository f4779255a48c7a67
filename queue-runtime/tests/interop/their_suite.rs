//! The tests that the source package of `azure-storage-queue` ships, synchronous and asynchronous, on our own server.
//!
//! Their files are as they are published. `their_suite` has what they import and PyPI does not have, and names each test
//! that is left out, with the reason.

use queue_tests::azurite::{Azurite, is_own_server};
use serde_json::json;

use crate::peer;
use crate::server::ACCOUNT;

/// On Azurite, nothing runs: these tests are about our server.
#[test]
fn microsofts_own_tests_pass_on_the_server() {
    if !is_own_server() {
        eprintln!("left out on Azurite: the tests of `azure-storage-queue` are about our server");
        return;
    }
    // Of its own: they set the properties of the account. With files, as a server that is in use.
    let server = Azurite::durable(&[ACCOUNT]).unwrap_or_else(|error| panic!("{error}"));
    let told = peer::run("their_suite/run.py", &server.connection_string(ACCOUNT), "");
    println!("the tests of `azure-storage-queue`: {told}");
    assert_eq!(told["failed"], json!([]), "{told:#}");
    assert!(told["passed"].as_u64() > Some(0), "{told:#}");
}
