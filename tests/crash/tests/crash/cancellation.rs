//! Each public future is dropped at each of its awaits, and no message is lost.
//!
//! In memory, every call of the backend waits, either before or after it is carried out. On SQLite, a call
//! that has begun is carried out, whatever becomes of its future.

use std::sync::Arc;
use std::time::Duration;

use queue_core::backend::Backend;
use queue_core::envelope::PoisonReason;
use queue_core::{Clock, ManualClock, Operation};
use queue_crash::cancel::drop_after;
use queue_crash::messages::{CrashOrder, Receipt};
use queue_crash::sabotage::{Bug, Sabotaged};
use queue_runtime::backend::{MemoryBackend, SqliteBackend};
use queue_runtime::request::RequestErrorKind;
use queue_runtime::testing::{Fault, FaultInjector, TokioClock};
use queue_runtime::{Delivery, Disposition, QueueService};
use tempfile::TempDir;
use tokio::runtime::Handle;

/// Beyond all leases, and beyond whatever a dropped future has left to the background.
const LATER: Duration = Duration::from_secs(3600);

/// The default number of attempts.
const THRESHOLD: usize = 5;

/// More awaits than any of the futures has.
const MANY: usize = 200;

/// Longer than all calls of one future wait.
const MANY_WAITS: Duration = Duration::from_millis(MANY as u64);

/// More rounds than could all be over at their first poll.
const ROUNDS: usize = 1_000;

const OPERATIONS: [Operation; 6] = [
    Operation::CreateQueue,
    Operation::Put,
    Operation::Receive,
    Operation::Update,
    Operation::Delete,
    Operation::Apply,
];

/// The storage of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// In memory; each call waits before it is carried out.
    WaitsBefore,
    /// In memory; each call is carried out, and then waits.
    WaitsAfter,
    Sqlite,
    /// As `WaitsBefore`, with a planted bug.
    Sabotaged,
}

struct Stage {
    service: QueueService,
    /// The number of tasks that run while nothing is under way.
    idle_tasks: usize,
    /// If the storage is SQLite.
    file: Option<(TempDir, ManualClock, Arc<SqliteBackend>)>,
    faults: Option<FaultInjector>,
}

impl Stage {
    async fn new(storage: Storage) -> Self {
        if storage == Storage::Sqlite {
            return Self::sqlite().await;
        }
        let clock = TokioClock::new();
        let memory = MemoryBackend::new(Arc::new(clock.clone()));
        let memory: Arc<dyn Backend> = match storage {
            Storage::Sabotaged => Arc::new(Sabotaged::new(Arc::new(memory), Bug::AppliesInSteps)),
            _ => Arc::new(memory),
        };
        let faults = FaultInjector::new(memory);
        let backend: Arc<dyn Backend> = Arc::new(faults.clone());
        let service = QueueService::with_backend(backend)
            .clock(Arc::new(clock))
            .on_current_runtime();
        let service = service.connect().await.expect("a runtime");
        let stage = Self {
            service,
            idle_tasks: 0,
            file: None,
            faults: Some(faults),
        };
        stage.create_queues().await;
        stage
    }

    async fn sqlite() -> Self {
        let (folder, clock) = (TempDir::new().expect("a folder"), ManualClock::new());
        let file = folder.path().join("queues.db");
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let backend = SqliteBackend::open(file, Arc::clone(&shared))
            .await
            .expect("open");
        let backend = Arc::new(backend);
        let shown: Arc<dyn Backend> = Arc::<SqliteBackend>::clone(&backend);
        let service = QueueService::with_backend(shown)
            .clock(shared)
            .on_current_runtime();
        let service = service.connect().await.expect("a runtime");
        let mut stage = Self {
            service,
            idle_tasks: 0,
            file: Some((folder, clock, backend)),
            faults: None,
        };
        stage.create_queues().await;
        stage.idle_tasks = tasks();
        stage
    }

    async fn create_queues(&self) {
        for name in QUEUES {
            let queue = self.service.any_queue(name).expect("a name");
            queue.create().await.expect("create");
        }
    }

    /// From now on, calls wait.
    fn disturb(&self, storage: Storage) {
        let Some(faults) = &self.faults else { return };
        let fault = match storage {
            Storage::WaitsBefore | Storage::Sabotaged => Fault::Delayed(Duration::from_millis(1)),
            _ => Fault::AnswerStalled,
        };
        for operation in OPERATIONS {
            faults.fail_every(operation, fault.clone());
        }
        let faults = faults.clone();
        tokio::spawn(async move {
            for _ in 0..10 * MANY {
                tokio::time::sleep(Duration::from_millis(1)).await;
                faults.release();
            }
        });
    }

    /// Waits until nothing is under way and all leases have ended.
    async fn settle_down(&self) {
        if let Some(faults) = &self.faults {
            faults.heal();
            faults.release();
        }
        match &self.file {
            None => tokio::time::sleep(LATER).await,
            Some((_, clock, _)) => {
                // What a dropped future has left is a task, which waits for a thread of the storage.
                for _ in 0..MANY {
                    self.create_queues().await;
                    if tasks() <= self.idle_tasks {
                        break;
                    }
                }
                clock.advance(LATER);
            }
        }
    }

    async fn counts(&self) -> Counts {
        let mut counts = [0; QUEUES.len()];
        for (count, name) in counts.iter_mut().zip(QUEUES) {
            let queue = self.service.any_queue(name).expect("a name");
            *count = queue
                .properties()
                .await
                .expect("properties")
                .approximate_count;
        }
        let [orders, receipts, poison] = counts;
        Counts {
            orders,
            receipts,
            poison,
        }
    }

    async fn submit(&self) {
        self.service
            .submit(CrashOrder::named("the-order"))
            .await
            .expect("submit");
    }

    async fn delivery(&self) -> Delivery<CrashOrder> {
        let accepted = self.service.accept::<CrashOrder>().await.expect("accept");
        accepted.expect("an order")
    }
}

/// The number of tasks on the runtime of the test.
fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

const QUEUES: [&str; 3] = ["orders", "receipts", "orders-poison"];

/// The messages on each queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    orders: usize,
    receipts: usize,
    poison: usize,
}

/// Runs a case for each number of polls, up to the first for which the future completes.
///
/// A storage with a thread of its own may answer before the first poll ends, so that nothing is dropped under
/// way. Such a round is repeated.
async fn at_each_await(mut case: impl AsyncFnMut(usize) -> bool) {
    for _ in 0..ROUNDS {
        let mut polls = 0;
        while !case(polls).await {
            polls += 1;
            assert!(
                polls < MANY,
                "the future does not complete within {MANY} polls"
            );
        }
        if polls > 1 {
            return;
        }
    }
    panic!("nothing was dropped under way in {ROUNDS} rounds");
}

async fn submit(storage: Storage) {
    at_each_await(async |polls| {
        let stage = Stage::new(storage).await;
        stage.disturb(storage);
        let submit = stage
            .service
            .submit(CrashOrder::named("the-order"))
            .id("the-order");
        let completed = drop_after(polls, submit.into_future()).await;
        stage.settle_down().await;
        let stored = stage.counts().await.orders;
        match &completed {
            Some(submitted) => {
                submitted.as_ref().expect("submitted");
                assert_eq!(stored, 1, "{storage:?}, {polls}");
            }
            None => assert!(stored <= 1, "{storage:?}, {polls}"),
        }
        completed.is_some()
    })
    .await;
}

async fn submit_all(storage: Storage) {
    at_each_await(async |polls| {
        let stage = Stage::new(storage).await;
        stage.disturb(storage);
        let orders = (0..5).map(|number| CrashOrder::named(number.to_string()));
        let submit = stage.service.submit_all(orders);
        let completed = drop_after(polls, submit.into_future()).await;
        stage.settle_down().await;
        let stored = stage.counts().await.orders;
        match &completed {
            Some(submitted) => {
                assert_eq!(submitted.as_ref().expect("submitted").len(), 5);
                assert_eq!(stored, 5, "{storage:?}, {polls}");
            }
            None => assert!(stored <= 5, "{storage:?}, {polls}"),
        }
        completed.is_some()
    })
    .await;
}

/// Drops `accept` at one await more often than the message may be attempted. None of that counts.
async fn accept(storage: Storage) {
    dropped_accepts(storage, 0).await;
}

/// The same for a message whose attempts are used up, so that it is marked before it is handled for the last
/// time.
async fn last_chance(storage: Storage) {
    dropped_accepts(storage, THRESHOLD).await;
}

async fn dropped_accepts(storage: Storage, attempts: usize) {
    at_each_await(async |polls| {
        let stage = Stage::new(storage).await;
        stage.submit().await;
        for _ in 0..attempts {
            drop(stage.delivery().await);
            stage.settle_down().await;
        }
        for round in 0..2 * THRESHOLD {
            stage.disturb(storage);
            let accept = stage.service.accept::<CrashOrder>();
            let completed = drop_after(polls, accept.into_future()).await;
            stage.settle_down().await;
            assert_eq!(stage.counts().await, ORDER, "{storage:?}, {polls}, {round}");
            if let Some(accepted) = completed {
                assert!(accepted.expect("accept").is_some(), "{storage:?}, {polls}");
                return true;
            }
        }
        let delivery = stage.delivery().await;
        assert_eq!(delivery.attempt(), attempts + 1, "{storage:?}, {polls}");
        delivery.complete().await.expect("complete");
        false
    })
    .await;
}

/// Drops a settlement at each await. It has then been carried out as a whole, or not at all.
async fn settle(
    storage: Storage,
    disposition: impl Fn() -> Disposition,
    before: Counts,
    after: Counts,
) {
    at_each_await(async |polls| {
        let stage = Stage::new(storage).await;
        stage.submit().await;
        let delivery = stage.delivery().await;
        stage.disturb(storage);
        let completed = drop_after(polls, delivery.settle(disposition())).await;
        stage.settle_down().await;
        let counts = stage.counts().await;
        match &completed {
            Some(settled) => {
                settled.as_ref().expect("settled");
                assert_eq!(counts, after, "{storage:?}, {polls}");
            }
            None => assert!(
                [before, after].contains(&counts),
                "{storage:?}, {polls}: {counts:?}"
            ),
        }
        completed.is_some()
    })
    .await;
}

const ORDER: Counts = Counts {
    orders: 1,
    receipts: 0,
    poison: 0,
};

async fn settlements(storage: Storage) {
    let nothing = Counts { orders: 0, ..ORDER };
    settle(storage, Disposition::complete, ORDER, nothing).await;
    let receipt = Receipt {
        name: "the-receipt".to_owned(),
    };
    let follow_up = || Disposition::complete().then(&receipt);
    let receipts = Counts {
        receipts: 1,
        ..nothing
    };
    settle(storage, follow_up, ORDER, receipts).await;
    let retry = || Disposition::retry_after(Duration::ZERO, "failed");
    settle(storage, retry, ORDER, ORDER).await;
    let poison = Counts {
        poison: 1,
        ..nothing
    };
    settle(storage, || Disposition::reject("failed"), ORDER, poison).await;
}

async fn redrive(storage: Storage) {
    at_each_await(async |polls| {
        let stage = Stage::new(storage).await;
        stage.submit().await;
        let rejected = stage.delivery().await.reject("failed").await;
        let reason = queue_runtime::receive::Settled::Poisoned(PoisonReason::Rejected);
        assert_eq!(rejected.expect("rejected"), reason);
        stage.disturb(storage);
        let poison = stage.service.any_queue("orders-poison").expect("a name");
        let completed = drop_after(polls, poison.redrive().run()).await;
        stage.settle_down().await;
        let counts = stage.counts().await;
        let poison = Counts {
            orders: 0,
            receipts: 0,
            poison: 1,
        };
        match &completed {
            Some(redriven) => {
                redriven.as_ref().expect("redriven");
                assert_eq!(counts, ORDER, "{storage:?}, {polls}");
            }
            None => assert!(
                [ORDER, poison].contains(&counts),
                "{storage:?}, {polls}: {counts:?}"
            ),
        }
        completed.is_some()
    })
    .await;
}

/// Drops a request at each await. It may have been submitted, and its reply queue is deleted in the end.
async fn request(storage: Storage) {
    at_each_await(async |polls| {
        let stage = Stage::new(storage).await;
        stage.disturb(storage);
        let request = stage.service.request(CrashOrder::named("the-order"));
        let request = request.reply::<Receipt>().timeout(MANY_WAITS);
        let completed = drop_after(polls, request.into_future()).await;
        stage.settle_down().await;
        let queues = stage.service.queues().await.expect("lists");
        assert_eq!(
            queues.len(),
            QUEUES.len(),
            "{storage:?}, {polls}: {queues:?}"
        );
        let stored = stage.counts().await.orders;
        match &completed {
            Some(replied) => {
                let error = replied.as_ref().expect_err("nobody replies");
                let in_vain = matches!(error.kind, RequestErrorKind::NoReply { .. });
                assert!(in_vain && stored == 1, "{storage:?}, {polls}: {error}");
            }
            None => assert!(stored <= 1, "{storage:?}, {polls}"),
        }
        completed.is_some()
    })
    .await;
}

macro_rules! dropped {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::Storage::WaitsBefore).await;
                super::$name(super::Storage::WaitsAfter).await;
            })*
        }

        mod on_sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Storage::Sqlite).await;
            })*
        }
    };
}

dropped! { submit submit_all accept last_chance settlements redrive }

/// Only in memory: a request ends at its timeout, and the clock of the test on SQLite stands still.
#[tokio::test(start_paused = true)]
async fn requests() {
    request(Storage::WaitsBefore).await;
    request(Storage::WaitsAfter).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "Counts { orders: 0, receipts: 0, poison: 0 }")]
async fn a_follow_up_lost_half_way_is_detected() {
    settlements(Storage::Sabotaged).await;
}
