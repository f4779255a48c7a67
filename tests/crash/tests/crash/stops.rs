//! A consumer is stopped with SIGSTOP for two leases: its settlement changes nothing. Or it is killed: another one
//! receives its message once the lease has ended.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use queue_crash::messages::{CrashOrder, LEASE, LONG_LEASE};
use queue_crash::plan;
use queue_crash::process::{GUARD, Process};
use queue_crash::sabotage::Bug;
use queue_crash::worker::{Arguments, GO, HELD, Role, Settle};
use queue_runtime::QueueService;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

const NAME: &str = "the-order-p";

/// The number of processes that are killed; `cargo xtask crash` kills `--times` as many.
const KILLS: usize = 10;

/// A file with one order, which a process holds.
struct Held {
    service: QueueService,
    holder: Process,
    lines: Receiver<(u64, String)>,
    _folder: TempDir,
}

impl Held {
    async fn start(settle: Settle, bug: Option<Bug>) -> Self {
        let folder = TempDir::new().expect("a folder");
        let file = folder.path().join("queues.db");
        let url = format!("sqlite:{}", file.display());
        let service = QueueService::connect(&url).await.expect("the file opens");
        service
            .submit(CrashOrder::named(NAME))
            .await
            .expect("submit");
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
        let holder = Process::start(program, &arguments, sender);
        assert_eq!(next(&lines), HELD);
        Self {
            service,
            holder,
            lines,
            _folder: folder,
        }
    }
}

/// Stops a process that holds a message until another consumer has held it for a lease and a third one
/// holds it, and returns what the process says of its settlement.
async fn stale_settlement(settle: Settle, bug: Option<Bug>) -> String {
    let held = Held::start(settle, bug).await;
    let (service, mut holder, lines) = (&held.service, held.holder, &held.lines);
    holder.stop();

    let accept = |lease| {
        let accept = service.accept::<CrashOrder>();
        accept.visibility_timeout(lease).wait(GUARD)
    };
    let second = accept(LEASE)
        .await
        .expect("accept")
        .expect("the lease has ended");
    drop(second);
    let third = accept(LONG_LEASE)
        .await
        .expect("accept")
        .expect("the second lease has ended");

    holder.resume();
    holder.tell(GO);
    let said = next(lines);
    let (status, complaints) = holder.finish();
    assert!(
        status.success() && complaints.is_empty(),
        "{status}: {complaints}"
    );

    assert_eq!(third.name, NAME);
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

/// Prints how long that takes. A consumer waits for the message meanwhile; nothing announces the end of a lease, so that
/// its next poll finds the message.
#[tokio::test]
async fn a_message_of_a_killed_process_is_received_once_its_lease_has_ended() {
    let mut random = SmallRng::seed_from_u64(plan::seed());
    let (mut after_kill, mut after_lease) = (Vec::new(), Vec::new());
    let mut stood_still = 0;
    while after_kill.len() < plan::times(KILLS) {
        let held = Held::start(Settle::Complete, None).await;
        let service = held.service.clone();
        let waiting = tokio::spawn(async move {
            let accept = service
                .accept::<CrashOrder>()
                .visibility_timeout(LONG_LEASE);
            let accepted = accept.wait(GUARD).await;
            (accepted.expect("accept").expect("an order"), Instant::now())
        });
        // At any moment between two renewals.
        tokio::time::sleep(LEASE.mul_f64(random.random_range(0.0..1.0))).await;
        let killed = Instant::now();
        let complaints = held.holder.kill();
        assert_eq!(complaints, "");
        let queue = held.service.queue::<CrashOrder>().any();
        let page = queue.browse(None, 1).await.expect("browse");
        if page.messages[0].dequeue_count > 1 {
            // The machine has stood still for a lease.
            stood_still += 1;
            assert!(stood_still < 10 * KILLS, "it is received before that");
            continue;
        }
        let lease_end = page.messages[0].visible_at;
        let left = lease_end.duration_since(page.now);
        let ended = Instant::now() + Duration::try_from(left).unwrap_or_default();

        let (delivery, received) = waiting.await.expect("no panic");
        let page = queue.browse(None, 1).await.expect("browse");
        let again = page.messages[0].visible_at.duration_since(lease_end);
        let again = Duration::try_from(again).expect("a later lease");
        let gained = again.checked_sub(LONG_LEASE);
        gained.unwrap_or_else(|| panic!("received before the lease ended: {again:?}"));
        delivery.complete().await.expect("the lease is its own");
        after_kill.push(received - killed);
        after_lease.push(received.saturating_duration_since(ended));
    }
    println!(
        "{} kills, visibility timeout {LEASE:?}: received again {} after the kill, {} after the end of the lease",
        after_kill.len(),
        spread(after_kill),
        spread(after_lease),
    );
}

/// The least, the median and the greatest.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let [least, median, greatest] = [0, times.len() / 2, times.len() - 1].map(|at| times[at]);
    format!("{least:.2?} to {greatest:.2?} (median {median:.2?})")
}
