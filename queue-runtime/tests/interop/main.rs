//! The same queues in the hands of programs that this repository did not write: the Python packages
//! `azure-storage-queue` and `cloudevents`, and the JavaScript package `@azure/storage-queue`, on a real Azurite.
//!
//! `cargo xtask test` installs all sides and runs this. By hand, `AZURITE` names the program
//! `azurite`, and `INTEROP_PYTHON` a Python that has the packages of `requirements.txt`. With `QUEUE_SERVER`, our own
//! server stands in for Azurite, and `their_suite` runs, too.

mod from_python;
mod languages;
mod metadata;
mod operations;
mod peer;
#[path = "../azurite/server.rs"]
mod server;
mod their_suite;
mod to_python;

use queue_runtime::QueueService;

use crate::server::connection_string;

async fn service() -> QueueService {
    let connected = QueueService::connect(&connection_string()).await;
    connected.expect("connect")
}
