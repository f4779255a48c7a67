//! A consumer is stopped with SIGSTOP for two leases. Its settlement changes nothing.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use queue_crash::messages::{LEASE, Order};
use queue_crash::process::{GUARD, Process};
use queue_crash::sabotage::Bug;
use queue_crash::worker::{Arguments, GO, HELD, Role, Settle};
use queue_runtime::QueueService;
use tempfile::TempDir;

/// Stops a process that holds a message until another consumer has held it for a lease and a third one
/// holds it, and returns what the process says of its settlement.
async fn stale_settlement(settle: Settle, bug: Option<Bug>) -> String {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("queues.db");
    let url = format!("sqlite:{}", file.display());
    let service = QueueService::connect(&url).await.expect("the file opens");
    let name = "the-order-p".to_owned();
    service.submit(Order::named(&name)).await.expect("submit");
    let arguments = Arguments {
        role: Role::Hold(settle),
        file,
        ledger: folder.path().join("1.ledger"),
        number: 1,
        seed: 0,
        bug,
        environment: Vec::new(),
    };
    let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
    let (sender, lines) = channel();
    let mut holder = Process::start(program, &arguments, sender);
    assert_eq!(next(&lines), HELD);
    holder.stop();

    let accept = || {
        service
            .accept::<Order>()
            .visibility_timeout(LEASE)
            .wait(GUARD)
    };
    let second = accept()
        .await
        .expect("accept")
        .expect("the lease has ended");
    assert_eq!(second.dequeue_count(), 2);
    drop(second);
    let third = accept()
        .await
        .expect("accept")
        .expect("the second lease has ended");
    assert_eq!(third.dequeue_count(), 3);

    holder.resume();
    holder.tell(GO);
    let said = next(&lines);
    let (status, complaints) = holder.finish();
    assert!(
        status.success() && complaints.is_empty(),
        "{status}: {complaints}"
    );

    assert_eq!(third.name, name);
    if bug.is_none() {
        third
            .complete()
            .await
            .expect("the lease is that of the third consumer");
        // A queue for poison messages or follow-ups may have been created, but holds nothing.
        for queue in service.queues().await.expect("queues") {
            let found = service.any_queue(queue.as_str()).expect("a name");
            let left = found.properties().await.expect("properties");
            assert_eq!(left.approximate_count, 0, "{queue}");
        }
    }
    said
}

fn next(lines: &Receiver<(u64, String)>) -> String {
    lines.recv_timeout(GUARD).expect("a line").1
}

#[tokio::test]
async fn a_stale_settlement_changes_nothing() {
    for settle in Settle::ALL {
        assert_eq!(
            stale_settlement(settle, None).await,
            "LeaseLost",
            "{settle}"
        );
    }
}

#[tokio::test]
async fn a_stale_settlement_that_is_acknowledged_is_detected() {
    let said = stale_settlement(Settle::Complete, Some(Bug::AcceptsStaleReceipts)).await;
    assert_eq!(said, "Completed", "the test cannot tell");
}
