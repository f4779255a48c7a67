//! A queue that another process pauses, in one file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::{Clock, ManualClock, SystemClock};
use queue_runtime::{ListenerEvent, ListenerEventKind, QueueService, Received};
use queue_tests::orders::ShopOrder;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

/// How long metadata stays fresh in a file.
const LAG: Duration = Duration::from_secs(5);

/// Long enough for the slowest machine; only a hang meets it.
const GUARD: Duration = Duration::from_secs(60);

/// Connects to the file by a connection of its own. The waits of the service, other than those of SQLite, are by its clock.
async fn connect(path: &Path, clock: Arc<dyn Clock>) -> (QueueService, Arc<SqliteBackend>) {
    let backend = SqliteBackend::open(path, Arc::new(SystemClock::new())).await;
    let backend = Arc::new(backend.expect("opens"));
    let service = QueueService::with_backend(backend.clone()).clock(clock);
    let service = service.connect().await.expect("connects");
    (service, backend)
}

/// Waits for an event that `wanted` picks, while time passes.
async fn next(
    events: &mut Receiver<ListenerEvent>,
    clock: &ManualClock,
    wanted: impl Fn(&ListenerEventKind) -> bool,
) -> ListenerEventKind {
    let find = async {
        loop {
            tokio::select! {
                event = events.recv() => {
                    let kind = event.expect("the listener runs").kind;
                    if wanted(&kind) {
                        return kind;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(20)) => clock.advance(LAG / 10),
            }
        }
    };
    let found = tokio::time::timeout(GUARD, find).await;
    found.expect("the event comes")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_another_service_pauses_is_not_received_from_until_it_resumes_it() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("queue.db");
    let clock = ManualClock::new();
    let (worker, worker_file) = connect(&path, Arc::new(clock.clone())).await;
    let (office, office_file) = connect(&path, Arc::new(SystemClock::new())).await;
    let orders = office.queue::<ShopOrder>();
    orders.any().create().await.expect("created");
    let listener =
        worker.listener(async |order: Received<ShopOrder>| assert_eq!(order.attempt(), 1));
    let mut events = listener.events();
    let listener = listener.start().expect("starts");
    let is_idle = |kind: &_| matches!(kind, ListenerEventKind::QueueEmpty { .. });
    next(&mut events, &clock, is_idle).await;

    // What the worker knows of the metadata is too old from now on.
    clock.advance(LAG);
    let mark = orders.any().pause(Some("stocktaking")).await;
    let mark = mark.expect("paused");
    orders
        .submit(ShopOrder { number: 7 })
        .await
        .expect("submitted");
    let told = |kind: &_| matches!(kind, ListenerEventKind::QueuePaused(_));
    let told = next(&mut events, &clock, told).await;
    assert!(
        matches!(&told, ListenerEventKind::QueuePaused(paused) if *paused == mark),
        "{told:?}"
    );
    let info = listener.info();
    assert_eq!(
        (info.completed, info.queue_paused),
        (0, Some(mark)),
        "of the file"
    );
    // If it was a poll that found the message, it hands it back.
    while listener.info().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    let before = worker.meter();
    let looks = || worker.meter().since(&before).total();
    let mut passed = Duration::ZERO;
    while looks().total() < 3 {
        clock.advance(LAG / 10);
        passed += LAG / 10;
        assert!(passed < 1_000 * LAG, "no look");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(passed >= 2 * LAG, "three looks within {passed:?}");
    let properties = queue_runtime::meter::TransactionKind::Properties;
    assert_eq!(looks().of(properties), looks().total(), "{}", looks());
    assert_eq!(listener.info().completed, 0);

    orders.any().resume().await.expect("resumed");
    let resumed = |kind: &_| matches!(kind, ListenerEventKind::QueueResumed);
    next(&mut events, &clock, resumed).await;
    let completed = |kind: &_| matches!(kind, ListenerEventKind::Completed { attempt: 1, .. });
    next(&mut events, &clock, completed).await;
    listener.shutdown(Duration::ZERO).await;
    worker_file.close().await;
    office_file.close().await;
}
