//! Processes that handle messages are asked to stop with SIGTERM. What their handlers do not finish in time is there at
//! once, as if it had not been received.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use queue_crash::history::{Figures, History, Promise};
use queue_crash::ledger::{self, Event, Lease, Ledger};
use queue_crash::messages::{Class, CrashOrder, LONG_LEASE};
use queue_crash::plan;
use queue_crash::process::{GUARD, Process};
use queue_crash::worker::{Arguments, Role, Stopped, open};
use queue_runtime::{Delivery, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use tempfile::TempDir;

/// Rounds in the test command; `cargo xtask crash` does `--times` as many.
const ROUNDS: usize = 2;

/// Orders that are submitted for each round. A process handles fewer at a time.
const ORDERS: usize = 40;

/// The rounds on one file.
struct Run {
    folder: TempDir,
    random: SmallRng,
    service: QueueService,
    /// What this process submits and completes.
    ledger: Ledger,
    ledgers: Vec<PathBuf>,
    submitted: usize,
    /// What the processes said at their end.
    handed_back: usize,
    stuck: usize,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let folder = TempDir::new().expect("a folder");
        let service =
            QueueService::with_backend(open(&folder.path().join("queues.db"), None).await);
        let own = folder.path().join("0.ledger");
        Self {
            random: SmallRng::seed_from_u64(seed),
            service: service.connect().await.expect("connects"),
            ledger: Ledger::create(&own),
            ledgers: vec![own],
            submitted: 0,
            handed_back: 0,
            stuck: 0,
            folder,
        }
    }

    async fn submit(&mut self) {
        for _ in 0..ORDERS {
            let name = format!("{}-{}", self.submitted, Class::Plain.letter());
            self.submitted += 1;
            self.ledger
                .write(Event::Submitting, &name, Lease::default());
            let submitted = self.service.submit(CrashOrder::named(&*name)).await;
            submitted.expect("the storage works");
            self.ledger.write(Event::Submitted, &name, Lease::default());
        }
    }

    /// Starts a process, and asks it to stop once it has handled a few orders.
    fn stop_a_process(&mut self) {
        let number = self.ledgers.len() as u64;
        let ledger = self.folder.path().join(format!("{number}.ledger"));
        self.ledgers.push(ledger.clone());
        let arguments = Arguments {
            role: Role::Serve,
            file: self.folder.path().join("queues.db"),
            ledger,
            number,
            seed: self.random.random(),
            bug: None,
            environment: Vec::new(),
        };
        let (sender, lines) = channel();
        let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
        let process = Process::start(program, &arguments, sender);
        for _ in 0..self.random.random_range(1..=2 * ORDERS) {
            lines.recv_timeout(GUARD).expect("it handles orders");
        }
        process.signal(Signal::TERM);
        let (status, complaints) = process.wait();
        assert!(
            status.success() && complaints.is_empty(),
            "{status}: {complaints}"
        );
        let said = lines.try_iter().filter_map(|(_, line)| line.parse().ok());
        let Stopped { released, stuck } = said.last().expect("it says how it has stopped");
        self.handed_back += released;
        self.stuck += stuck;
    }

    /// Receives what is on the queue at once, after a process has stopped. No handler has failed, and none has died.
    async fn complete_what_is_left(&self) {
        let accept = || {
            self.service
                .accept::<CrashOrder>()
                .visibility_timeout(LONG_LEASE)
        };
        while let Some(order) = accept().await.expect("the storage works") {
            let (attempt, record) = (order.attempt(), &order.envelope().attempts);
            assert_eq!(
                (attempt, record.failures),
                (1, 0),
                "{}: {record:?}",
                order.name
            );
            self.complete(order).await;
        }
        let orders = self.service.queue::<CrashOrder>().any();
        let left = orders.properties().await.expect("the queue exists");
        assert_eq!(
            left.approximate_count, 0,
            "messages are left to their leases"
        );
    }

    async fn complete(&self, order: Delivery<CrashOrder>) {
        let lease = Lease {
            inserted: order.inserted_at().as_microsecond(),
            dequeued: order.dequeue_count(),
        };
        let name = order.name.clone();
        self.ledger.write(Event::Started, &name, lease);
        self.ledger.write(Event::Finishing, &name, lease);
        order.complete().await.expect("the storage works");
        self.ledger.write(Event::Completed, &name, lease);
    }

    fn judge(&self) -> Figures {
        let mut history = History::default();
        for ledger in &self.ledgers {
            history.add(ledger::read(ledger));
        }
        let checked = history.check(Promise::OneCopy);
        checked.unwrap_or_else(|violations| panic!("{violations:#?}"))
    }
}

#[tokio::test]
async fn a_process_that_is_asked_to_stop_loses_repeats_and_burns_nothing() {
    let rounds = plan::times(ROUNDS);
    let mut run = Run::new(plan::seed()).await;
    for _ in 0..rounds {
        run.submit().await;
        run.stop_a_process();
        run.complete_what_is_left().await;
    }
    let figures = run.judge();
    println!(
        "{rounds} rounds, {} handed back: {figures}",
        run.handed_back
    );
    assert_eq!(figures.completed, rounds * ORDERS, "{figures}");
    assert_eq!(figures.poisoned, 0, "{figures}");
    // A handler that does not react to being cancelled may finish after its message was handed back.
    assert!(
        figures.duplicated <= run.stuck,
        "{figures}, {} stuck",
        run.stuck
    );
}
