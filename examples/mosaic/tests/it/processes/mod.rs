//! The program with one role in each process, on one SQLite file.

mod commands;
#[cfg(unix)]
mod instances;
mod kill;
mod manners;
mod support;

use std::fs;
use std::time::Duration;

use mosaic::storage::store::Store;
use support::{Location, pictures};
use tempfile::TempDir;

#[test]
fn workers_are_killed_and_the_mosaic_is_the_same() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let data = scratch.path().join("data");
    fs::create_dir(&data).expect("made");
    let deployment = kill::Deployment {
        location: Location::folder(&data),
        queues: format!("sqlite:{}", data.join("queues.db").display()),
        visibility_timeout: "1s",
        kill_every: Duration::from_millis(300),
    };
    kill::workers(&deployment, pictures.path(), scratch.path(), async || {
        Store::folder(&data.join("blobs")).expect("it is there")
    });
}
