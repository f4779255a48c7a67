//! A storage, and the program on it.

use std::path::PathBuf;

use assert_cmd::Command;
use queue_runtime::{Delivery, QueueService};
use queue_tests::orders::ShopOrder;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) struct Storage {
    pub(crate) url: String,
    pub(crate) folder: TempDir,
}

/// What a run of the program has written.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

impl Storage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        Self { url, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) async fn service(&self) -> QueueService {
        QueueService::connect(&self.url).await.expect("opens")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_queues"));
        command.env("QUEUE_URL", &self.url).env_remove("RUST_LOG");
        command.args(arguments);
        command
    }

    /// Runs the program to its end, without a terminal.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// Runs it, and returns what it has written. It must succeed.
    #[track_caller]
    pub(crate) fn out(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran.out
    }

    /// Returns the JSON lines that it has written.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let all = [&["--json"], arguments].concat();
        let out = self.out(&all);
        let line = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        out.lines().map(line).collect()
    }

    /// Returns the number of messages that a queue has.
    pub(crate) fn messages(&self, queue: &str) -> u64 {
        let properties = self.json(&["properties", queue]);
        properties[0]["messages"].as_u64().expect("a number")
    }

    pub(crate) async fn submit(&self, numbers: impl IntoIterator<Item = u32>) {
        let orders = numbers.into_iter().map(|number| ShopOrder { number });
        let service = self.service().await;
        service.submit_all(orders).await.expect("submitted");
    }

    /// Has an order moved to the poison queue for this reason.
    pub(crate) async fn reject(&self, error: &str) {
        let service = self.service().await;
        let order: Option<Delivery<ShopOrder>> = service.accept().await.expect("no error");
        let rejected = order.expect("an order").reject(error.to_owned()).await;
        rejected.expect("rejected");
    }
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self {
            code: output.status.code().expect("it ended by itself"),
            out: text(output.stdout),
            error: text(output.stderr),
        }
    }

    #[track_caller]
    pub(crate) fn failed(&self, code: i32, text: &str) {
        assert!(self.code == code && self.error.contains(text), "{self:?}");
    }
}
