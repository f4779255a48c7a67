//! Bodies larger than their reader's limit, and those for which a poison record leaves no room.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use queue_runtime::backend::{
    Backend, BackendExt as _, MemoryBackend, Metadata, NewMessage, SqliteBackend,
};
use queue_runtime::clock::SystemClock;
use queue_runtime::envelope::PoisonReason;
use queue_runtime::error::Operation;
use queue_runtime::testing::{FaultInjector, TokioClock};
use queue_runtime::wire::Body;
use queue_runtime::{ListenerEventKind, QueueName, QueueService, Received};
use queue_tests::orders::{Order, order};

use crate::support::storage::Storage;
use crate::support::{accepted, count, events, stop};

const LIMIT: usize = 48 * 1024;

/// A backend that others share, with the default limits and with raised ones.
struct Pair {
    reader: Arc<dyn Backend>,
    writer: Arc<dyn Backend>,
}

fn memory() -> Pair {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("sizes-{}", NEXT.fetch_add(1, Relaxed));
    let open = || MemoryBackend::named(&name, Arc::new(TokioClock::new()));
    Pair {
        reader: Arc::new(open()),
        writer: Arc::new(open().with_max_body(1024 * 1024)),
    }
}

async fn sqlite(directory: &Path) -> Pair {
    let path = directory.join("queue.db");
    let clock = Arc::new(SystemClock::new());
    let builder = || SqliteBackend::builder(&path, clock.clone());
    Pair {
        reader: Arc::new(builder().open().await.expect("opens")),
        writer: Arc::new(builder().max_body(1024 * 1024).open().await.expect("opens")),
    }
}

async fn service(backend: Arc<dyn Backend>) -> QueueService {
    let service = QueueService::with_backend(backend).on_current_runtime();
    service.connect().await.expect("connects")
}

#[tokio::test]
async fn a_body_over_the_readers_limit_is_moved_once_and_comes_back_whole() {
    let directory = tempfile::TempDir::new().expect("a directory");
    for pair in [memory(), sqlite(directory.path()).await] {
        let faults = FaultInjector::new(pair.reader);
        let reader = service(Arc::new(faults.clone())).await;
        let writer = service(pair.writer).await;
        let mut large = order(1);
        large.note = "x".repeat(100 * 1024);
        let submitted = writer
            .submit(large.clone())
            .await
            .expect("within its limit");

        let listener = reader.listener(async |_: Received<Order>| ());
        let mut seen = listener.events();
        let listener = listener.start().expect("starts");
        let found = events(&mut seen, 1, |_| true).await;
        let ListenerEventKind::Poisoned {
            reason: PoisonReason::Undecodable,
            ..
        } = &found[0]
        else {
            panic!("{found:?}")
        };
        stop(listener).await;
        assert_eq!(count(&reader, "orders").await, 0);
        // The move, and once more after its queue was created.
        assert_eq!(faults.calls(Operation::Apply), 2);

        let poison = reader.any_queue("orders-poison").expect("a name");
        let peeked = poison.peek(2).await.expect("peeks");
        let [peeked] = &peeked[..] else {
            panic!("{peeked:?}")
        };
        let Body::Event(event) = &peeked.body else {
            panic!("{:?}", peeked.body)
        };
        let record = event.envelope.poison.as_ref().expect("a record");
        let error = record.error.as_deref().unwrap_or_default();
        assert!(error.contains("49152 are allowed"), "{error}");

        assert_eq!(poison.redrive().run().await.expect("redriven").redriven, 1);
        let delivery = accepted::<Order>(&writer).await;
        assert_eq!(*delivery.message(), large);
        assert_eq!(delivery.envelope().id, submitted.id);
        delivery.complete().await.expect("completed");
    }
}

async fn bodies(backend: &dyn Backend, queue: &QueueName) -> Vec<bytes::Bytes> {
    let peeked = backend.peek(queue, 32).await.expect("the queue exists");
    let mut bodies: Vec<_> = peeked.into_iter().map(|message| message.body).collect();
    bodies.sort_by_key(bytes::Bytes::len);
    bodies
}

#[tokio::test(start_paused = true)]
async fn bodies_of_all_sizes_go_to_the_poison_queue_and_back_unchanged() {
    let Pair { reader, writer } = memory();
    let orders: QueueName = "orders".parse().expect("a name");
    let reader = service(reader).await;
    reader
        .any_queue("orders")
        .expect("a name")
        .create()
        .await
        .expect("created");
    let around = |size: usize| [size - 1, size, size + 1];
    let sizes: Vec<usize> = [LIMIT / 4 * 3, LIMIT, 64 * 1024]
        .into_iter()
        .flat_map(around)
        .collect();
    for size in [0].into_iter().chain(sizes) {
        let body = vec![b'\0'; size];
        writer
            .put(&orders, NewMessage::new(body))
            .await
            .expect("put");
    }
    let before = bodies(&*writer, &orders).await;
    assert_eq!(before.len(), 10);

    assert!(
        reader
            .accept::<Order>()
            .await
            .expect("all are moved")
            .is_none()
    );
    assert_eq!(count(&reader, "orders").await, 0);
    let poison = reader.any_queue("orders-poison").expect("a name");
    let redriven = poison.redrive().run().await.expect("redriven");
    assert_eq!((redriven.redriven, redriven.without_record), (10, 0));
    assert_eq!(bodies(&*writer, &orders).await, before);
}

/// As on Azure, where the service has a limit of its own.
#[tokio::test(start_paused = true)]
async fn a_body_without_room_for_a_record_is_moved_as_it_is() {
    let storage = Storage::new().with_moved_limit(LIMIT);
    let (service, backend) = storage.connect().await;
    let orders: QueueName = "orders".parse().expect("a name");
    service
        .any_queue("orders")
        .expect("a name")
        .create()
        .await
        .expect("created");
    for size in [LIMIT / 4 * 3, LIMIT] {
        backend
            .put(&orders, NewMessage::new(vec![b'\0'; size]))
            .await
            .expect("put");
    }
    let before = bodies(&backend, &orders).await;
    assert!(
        service
            .accept::<Order>()
            .await
            .expect("all are moved")
            .is_none()
    );
    let poison: QueueName = "orders-poison".parse().expect("a name");
    assert_eq!(bodies(&backend, &poison).await, before);
    let redrive = service
        .any_queue("orders-poison")
        .expect("a name")
        .redrive();
    assert_eq!(redrive.run().await.expect("redriven").without_record, 2);
}

/// As documented in `docs/design.md`, "Limits".
#[tokio::test]
async fn the_default_limits_are_the_documented_ones() {
    const KIB: usize = 1024;
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

    let directory = tempfile::TempDir::new().expect("a directory");
    for pair in [memory(), sqlite(directory.path()).await] {
        let limits = pair.reader.capabilities();
        assert_eq!(limits.max_body, 48 * KIB, "{limits:?}");
        assert_eq!(limits.max_moved_body, usize::MAX, "{limits:?}");
        assert_eq!(limits.max_metadata, 8 * KIB, "{limits:?}");
        assert_eq!(limits.min_visibility, Duration::from_secs(1), "{limits:?}");
        assert_eq!(limits.max_visibility, WEEK, "{limits:?}");
        assert_eq!(limits.max_apply, 1024, "{limits:?}");
        assert_eq!(limits.max_apply_bytes, 8 * KIB * KIB, "{limits:?}");
    }
}

#[tokio::test]
async fn limits_are_raised_by_choice() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let clock = Arc::new(SystemClock::new());
    let short = Duration::from_millis(1);
    let memory = MemoryBackend::new(clock.clone());
    let memory = memory
        .with_min_visibility(short)
        .with_max_metadata(16 * 1024);
    let sqlite = SqliteBackend::builder(directory.path().join("queue.db"), clock);
    let sqlite = sqlite
        .min_visibility(short)
        .max_metadata(16 * 1024)
        .open()
        .await;
    let backends: [Arc<dyn Backend>; 2] = [Arc::new(memory), Arc::new(sqlite.expect("opens"))];
    for backend in backends {
        let queue = "orders".parse().expect("a name");
        let mut metadata = Metadata::new();
        metadata
            .insert("a", &"x".repeat(9 * 1024))
            .expect("allowed");
        backend
            .create_queue(&queue, &metadata)
            .await
            .expect("within the limit");
        backend
            .set_metadata(&queue, &metadata)
            .await
            .expect("within the limit");
        backend
            .receive(&queue, 1, short)
            .await
            .expect("within the limit");
    }
}
