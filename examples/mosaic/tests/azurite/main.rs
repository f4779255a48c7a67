//! The program with its queues and blobs in an account of Azurite.

#[path = "../processes/kill.rs"]
mod kill;
mod lost;
mod secrets;
mod server;
#[path = "../processes/support.rs"]
mod support;

use std::fs;
use std::time::Duration;

use mosaic::azure::Account;
use mosaic::store::Store;
use server::SERVER;
use support::{Location, job, output, pictures};
use tempfile::TempDir;

/// Queues and blobs in one account, by one environment variable.
fn location(account: &str) -> Location {
    Location {
        arguments: Vec::new(),
        variables: vec![("QUEUE_URL", SERVER.connection_string(account))],
    }
}

#[test]
fn the_mosaic_is_the_same_as_over_sqlite() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let expected = kill::undisturbed(pictures.path(), &scratch.path().join("undisturbed"));
    let out = scratch.path().join("out.png");
    let made = output(&mut job("run", pictures.path(), &location("quiet"), &out));
    let stderr = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{stderr}");
    assert!(
        fs::read(&out).expect("the mosaic") == expected,
        "another mosaic"
    );
}

#[test]
fn workers_are_killed_and_the_mosaic_is_the_same() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let url = SERVER.connection_string("killed");
    let deployment = kill::Deployment {
        location: location("killed"),
        queues: url.clone(),
        visibility_timeout: "2s",
        kill_every: Duration::from_millis(400),
    };
    kill::workers(&deployment, pictures.path(), scratch.path(), async || {
        let store = Store::azure(Account::beside(&url)).await;
        store.expect("it is there")
    });
}
