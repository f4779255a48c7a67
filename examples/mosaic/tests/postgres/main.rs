//! The program with its queues in a PostgreSQL database, and its blobs in a folder.

#[path = "../it/processes/kill.rs"]
mod kill;
#[path = "../it/processes/support.rs"]
#[expect(dead_code, reason = "the suite of processes uses all of it")]
mod support;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use mosaic::storage::store::Store;
use queue_tests::postgres::PostgresServer;
use support::{Location, job, output, pictures};
use tempfile::TempDir;

static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| {
    let started = PostgresServer::start();
    started.unwrap_or_else(|error| panic!("{error}"))
});

fn url(schema: &str) -> String {
    format!("{}?schema={schema}", SERVER.url())
}

fn location(schema: &str, blobs: &Path) -> Location {
    Location {
        arguments: vec!["--data".to_owned(), blobs.display().to_string()],
        variables: vec![("QUEUE_URL", url(schema))],
    }
}

#[test]
fn the_mosaic_is_the_same_as_over_sqlite() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let expected = kill::undisturbed(pictures.path(), &scratch.path().join("undisturbed"));
    let location = location("quiet", &scratch.path().join("data"));
    let out = scratch.path().join("out.png");
    let made = output(&mut job("run", pictures.path(), &location, &out));
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
    let data = scratch.path().join("data");
    let deployment = kill::Deployment {
        location: location("killed", &data),
        queues: url("killed"),
        visibility_timeout: "2s",
        kill_every: Duration::from_millis(400),
    };
    kill::workers(&deployment, pictures.path(), scratch.path(), async || {
        Store::folder(&data.join("blobs")).expect("it is there")
    });
}
