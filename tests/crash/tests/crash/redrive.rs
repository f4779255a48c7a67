//! Processes that redrive ten thousand messages at the same time are killed, and each message is put back once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use queue_core::backend::{Backend, BackendExt as _, NewMessage, Op};
use queue_crash::plan;
use queue_crash::process::{GUARD, Process};
use queue_crash::sabotage::Bug;
use queue_crash::worker::{Arguments, Role, open};
use queue_runtime::wire::Body;
use queue_runtime::{QueueName, QueueService};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

/// Messages that may be moved without a line: in a step of each of two processes, and while one is killed.
const UNTOLD: usize = 256;

/// A poison queue, and the processes that redrive it.
struct Scene {
    folder: TempDir,
    backend: std::sync::Arc<dyn Backend>,
    poison: QueueName,
    /// What is on the poison queue at first, and what is added when little is left.
    messages: usize,
    put: usize,
    started: u64,
    bug: Option<Bug>,
    sender: Sender<(u64, String)>,
    lines: Receiver<(u64, String)>,
}

impl Scene {
    async fn new(messages: usize, bug: Option<Bug>) -> Self {
        let folder = TempDir::new().expect("a folder");
        let (sender, lines) = channel();
        Self {
            backend: open(&folder.path().join("queues.db"), None).await,
            folder,
            poison: "orders-poison".parse().expect("a name"),
            messages,
            put: 0,
            started: 0,
            bug,
            sender,
            lines,
        }
    }

    /// Puts more messages on the poison queue.
    async fn fill(&mut self) {
        let ensured = self.backend.ensure_queue(&self.poison).await;
        ensured.expect("the queue exists");
        let ids: Vec<_> = (self.put..self.put + self.messages).collect();
        self.put += self.messages;
        for ids in ids.chunks(1000) {
            let put = |&id| Op::Put {
                queue: self.poison.clone(),
                message: NewMessage::moved(poisoned(id)),
            };
            let ops = ids.iter().map(put).collect();
            self.backend.apply(ops).await.expect("put");
        }
    }

    fn start(&mut self) -> Process {
        self.started += 1;
        let arguments = Arguments {
            role: Role::Redrive,
            file: self.folder.path().join("queues.db"),
            ledger: self.folder.path().join(format!("{}.ledger", self.started)),
            number: self.started,
            seed: 0,
            bug: self.bug,
            environment: Vec::new(),
        };
        let program = Path::new(env!("CARGO_BIN_EXE_crash-worker"));
        Process::start(program, &arguments, self.sender.clone())
    }

    /// Kills processes, each after a random number of messages, then redrives the rest.
    async fn run(&mut self, kills: usize) {
        let mut random = SmallRng::seed_from_u64(plan::seed());
        self.fill().await;
        let (most, mut told) = (self.messages / 10, 0);
        let mut processes = [self.start(), self.start()];
        for kill in 0..kills {
            if self.put - told < most + UNTOLD * (kill + 1) {
                self.fill().await;
            }
            for _ in 0..random.random_range(1..=most) {
                self.lines.recv_timeout(GUARD).expect("a message is moved");
                told += 1;
            }
            let next = self.start();
            let killed = std::mem::replace(&mut processes[kill % 2], next);
            let complaints = killed.kill();
            assert!(complaints.is_empty(), "{complaints}");
            told += self.lines.try_iter().count();
        }
        for process in processes {
            let (status, complaints) = process.finish();
            assert!(status.success() && complaints.is_empty(), "{complaints}");
        }
        let service = QueueService::with_backend(self.backend.clone())
            .connect()
            .await;
        let service = service.expect("connects");
        let poison = service.any_queue(self.poison.as_str()).expect("a name");
        let rest = poison.redrive().run().await.expect("redriven");
        println!(
            "{kills} kills, {} messages; the last redrive: {rest:?}",
            self.put
        );
        assert_eq!(
            poison
                .properties()
                .await
                .expect("counted")
                .approximate_count,
            0
        );
    }

    /// Returns the ids of the messages on their own queue, one for each copy.
    async fn redriven(&self) -> Vec<usize> {
        let orders: QueueName = "orders".parse().expect("a name");
        let (mut ids, mut from) = (Vec::new(), None);
        loop {
            let page = self.backend.browse(&orders, from.as_ref(), 256).await;
            let page = page.expect("browsed");
            for message in page.messages {
                let Body::Event(event) = Body::read(&message.body, usize::MAX) else {
                    panic!("no event: {message:?}")
                };
                assert_eq!(event.envelope.poison, None);
                ids.push(event.envelope.id.as_str().parse().expect("a number"));
            }
            from = page.next;
            if from.is_none() {
                return ids;
            }
        }
    }
}

/// Returns an event with a poison record.
fn poisoned(id: usize) -> String {
    let record = format!(
        r#""poisonreason":"failed","poisonerror":"no","poisonqueue":"orders","poisonid":"{id}""#
    );
    format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"crash.order",{record},"data":{{"name":"{id}-p"}}}}"#
    )
}

#[tokio::test]
async fn each_message_is_put_back_once_when_redrives_are_killed() {
    let mut scene = Scene::new(10_000, None).await;
    scene.run(plan::times(3)).await;
    let mut ids = scene.redriven().await;
    ids.sort_unstable();
    assert!(
        ids.iter().copied().eq(0..scene.put),
        "{} of {}",
        ids.len(),
        scene.put
    );
}

#[tokio::test]
async fn a_redrive_that_deletes_before_it_puts_is_detected() {
    let mut scene = Scene::new(1000, Some(Bug::AppliesInSteps)).await;
    scene.run(2).await;
    let distinct: BTreeSet<_> = scene.redriven().await.into_iter().collect();
    assert!(distinct.len() < scene.put, "the test cannot tell");
}
