//! Two processes adopt the same database of an application at once.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::sync::mpsc::channel;

use queue_crash::plan;
use queue_crash::power::{
    Durability, FILE, Ledgers, assert_application, builder, contents, create_application,
};
use queue_crash::process::Process;
use queue_crash::worker::{Arguments, Role};
use tempfile::TempDir;

#[tokio::test]
async fn processes_that_adopt_a_database_at_once_lose_nothing() {
    for round in 0..plan::times(4) {
        let folder = TempDir::new().expect("a folder");
        create_application(folder.path());
        let (sender, _lines) = channel();
        let start = |number| {
            let arguments = Arguments {
                role: Role::Adopt,
                file: folder.path().join(FILE),
                ledger: folder.path().join(format!("{number}.ledger")),
                number,
                seed: 0,
                bug: None,
                environment: Vec::new(),
            };
            let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
            Process::start(program, &arguments, sender.clone())
        };
        let mut ledgers = Ledgers::default();
        for process in [0, 1].map(start) {
            let number = process.number;
            let (status, complaints) = process.wait();
            assert!(
                status.success() && complaints.is_empty(),
                "round {round}, {number}: {status}: {complaints}"
            );
            ledgers.read(folder.path(), number);
        }
        // It has queues now, so that it is opened without adopting it.
        let file = folder.path().join(FILE);
        let contents = contents(&file, builder(&file)).await;
        let judged = ledgers.judge(&contents, Durability::Full);
        judged.unwrap_or_else(|what| panic!("round {round}: {what}"));
        assert!(!contents.names.is_empty(), "round {round}");
        assert_application(folder.path());
    }
}
