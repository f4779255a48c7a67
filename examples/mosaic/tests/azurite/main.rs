//! The program with its queues and blobs in an account of Azurite.

#[path = "../it/processes/kill.rs"]
mod kill;
mod secrets;
#[path = "../it/processes/support.rs"]
#[expect(dead_code, reason = "the suite of processes uses all of it")]
mod support;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use mosaic::storage::store::Store;
use queue_runtime::QueueService;
use queue_tests::azurite::Azurite;
use support::{Location, job, output, pictures};
use tempfile::TempDir;

/// One account per test, so that tests do not see each other's messages.
const ACCOUNTS: [&str; 4] = ["quiet", "killed", "secretive", "library"];

/// The Azurite that all tests of this process share.
static SERVER: LazyLock<Azurite> = LazyLock::new(|| {
    let started = Azurite::start(&ACCOUNTS);
    started.unwrap_or_else(|error| panic!("{error}"))
});

/// Queues and blobs in one account, by one environment variable.
fn location(account: &str) -> Location {
    Location {
        arguments: Vec::new(),
        variables: vec![("QUEUE_URL", SERVER.connection_string(account))],
    }
}

/// Renders a mosaic there, and compares it with one over SQLite.
fn assert_the_same_mosaic(location: &Location, scratch: &Path) {
    let pictures = pictures();
    let expected = kill::undisturbed(pictures.path(), &scratch.join("undisturbed"));
    let out = scratch.join("out.png");
    let made = output(&mut job("run", pictures.path(), location, &out));
    let stderr = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{stderr}");
    assert!(
        fs::read(&out).expect("the mosaic") == expected,
        "another mosaic"
    );
}

#[test]
fn the_mosaic_is_the_same_as_over_sqlite() {
    let scratch = TempDir::new().expect("a folder");
    assert_the_same_mosaic(&location("quiet"), scratch.path());
}

#[test]
fn the_mosaic_is_the_same_with_its_queues_on_our_server() {
    let scratch = TempDir::new().expect("a folder");
    let server = Azurite::server(&["ours"]).unwrap_or_else(|error| panic!("{error}"));
    // The server has no blobs.
    let blobs = scratch.path().join("blobs").display().to_string();
    let location = Location {
        arguments: vec!["--data".to_owned(), blobs],
        variables: vec![("QUEUE_URL", server.connection_string("ours"))],
    };
    assert_the_same_mosaic(&location, scratch.path());
}

#[test]
fn a_container_is_a_tile_library() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let out = scratch.path().join("out.png");
    for request in ["one", "two"] {
        let mut run = job("run", pictures.path(), &location("library"), &out);
        let made = output(run.args(["--keep", "--request-id", request]));
        assert!(made.status.success(), "{made:?}");
    }
    let made = |container: &str| {
        let mut run = support::program(&["run", "--across", "12", "--tile-size", "4"]);
        run.envs(location("library").variables);
        run.args(["--library-container", container, "--out"])
            .arg(&out);
        output(&mut run)
    };
    let from_requests = made("mosaic");
    let stdout = String::from_utf8_lossy(&from_requests.stdout);
    assert!(
        // Of both requests, 64 slices before and after.
        stdout.contains(" tiles from 256 pictures"),
        "{from_requests:?}"
    );
    let failed = made("missing");
    let stderr = String::from_utf8_lossy(&failed.stderr);
    assert!(
        stderr.contains("the container `missing` does not exist"),
        "{stderr}"
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
        let account = QueueService::connect(&url).await.expect("it is there");
        Store::beside(&account).await.expect("it is there")
    });
}
