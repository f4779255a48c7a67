//! Concurrent tasks: no message is lost or leased twice.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::join_all;

use super::fixture::{Fixture, LONG, metadata, text};
use super::harness::{Harness, Load};
use crate::backend::{Backend, Created, NewMessage, ReceivedMessage, StorageId};
use crate::error::ErrorKind;
use crate::name::QueueName;

/// The number of puts or deletes that one task has in flight.
const WINDOW: usize = 32;

pub(super) async fn nothing_is_lost_and_nothing_held_twice(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let clients = [Arc::clone(&f.backend)];
    pass_through(harness, &f, &clients, harness.load()).await;
}

pub(super) async fn two_clients_share_the_work(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    let clients = [Arc::clone(&f.backend), f.store.second_client().await];
    let Load { tasks, messages } = harness.load();
    let load = Load {
        tasks,
        messages: messages / 10,
    };
    pass_through(harness, &f, &clients, load).await;
}

/// Each task puts its share; then all tasks receive and delete until every message is done.
async fn pass_through(
    harness: &dyn Harness,
    f: &Fixture,
    clients: &[Arc<dyn Backend>],
    load: Load,
) {
    let share = load.messages / load.tasks;
    let ledger = Arc::new(Ledger::default());
    let work = (0..load.tasks).map(|task| {
        let worker = Worker {
            backend: Arc::clone(&clients[task % clients.len()]),
            queue: f.queue.clone(),
            ledger: Arc::clone(&ledger),
            numbers: (task * share, (task + 1) * share),
            total: share * load.tasks,
        };
        harness.spawn(Box::pin(async move {
            worker.put().await;
            worker.consume().await;
        }))
    });
    join_all(work).await;
    assert_eq!(ledger.done.load(SeqCst), share * load.tasks);
    let left = ledger.held.lock().expect("no task panicked").len();
    assert_eq!(left, 0);
    f.assert_nothing_visible().await;
    assert_eq!(f.count().await, 0);
}

/// The messages that are held, and those that are done.
#[derive(Default)]
struct Ledger {
    held: Mutex<HashSet<StorageId>>,
    seen: Mutex<HashSet<usize>>,
    done: AtomicUsize,
}

struct Worker {
    backend: Arc<dyn Backend>,
    queue: QueueName,
    ledger: Arc<Ledger>,
    numbers: (usize, usize),
    total: usize,
}

impl Worker {
    async fn put(&self) {
        let (mut next, end) = self.numbers;
        while next < end {
            let until = end.min(next + WINDOW);
            let puts = (next..until).map(|number| {
                let message = NewMessage::new(number.to_string());
                self.backend.put(&self.queue, message)
            });
            for put in join_all(puts).await {
                put.expect("put");
            }
            next = until;
        }
    }

    async fn consume(&self) {
        let max = self.backend.capabilities().max_receive.min(WINDOW as u32);
        while self.ledger.done.load(SeqCst) < self.total {
            let received = self.backend.receive(&self.queue, max, LONG).await;
            let received = received.expect("receive");
            if received.is_empty() {
                yield_now().await;
            }
            join_all(received.iter().map(|message| self.settle(message))).await;
        }
    }

    async fn settle(&self, message: &ReceivedMessage) {
        let Ledger { held, seen, done } = &*self.ledger;
        assert_eq!(message.dequeue_count, 1, "its lease has not ended");
        let fresh = held.lock().expect("no panic").insert(message.id.clone());
        assert!(fresh, "{} is held by two at a time", message.id);
        yield_now().await;
        assert!(held.lock().expect("no panic").remove(&message.id));
        let (id, receipt) = (&message.id, &message.receipt);
        let deleted = self.backend.delete(&self.queue, id, receipt).await;
        deleted.expect("the holder may delete");
        let number = text(&message.body).parse().expect("a number");
        let first = seen.lock().expect("no panic").insert(number);
        assert!(first, "{number} was delivered twice");
        done.fetch_add(1, SeqCst);
    }
}

pub(super) async fn one_of_many_deletes_wins(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    for _ in 0..20 {
        f.put("one").await;
        let message = f.receive_one().await;
        let won = race(harness, &f, move |backend, queue| {
            let message = message.clone();
            Box::pin(async move {
                let (id, receipt) = (&message.id, &message.receipt);
                match backend.delete(&queue, id, receipt).await {
                    Err(error) if error.is_lease_gone() => false,
                    deleted => deleted.map(|()| true).expect("deleted or gone"),
                }
            })
        });
        assert_eq!(won.await, 1);
    }
}

pub(super) async fn one_of_many_updates_wins(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    for _ in 0..20 {
        f.put("one").await;
        let message = f.receive_one().await;
        let won = race(harness, &f, move |backend, queue| {
            let message = message.clone();
            Box::pin(async move {
                let (id, receipt) = (&message.id, &message.receipt);
                match backend.update(&queue, id, receipt, LONG, None).await {
                    Err(error) if error.is_lease_gone() => false,
                    updated => updated.map(|_| true).expect("updated or gone"),
                }
            })
        });
        assert_eq!(won.await, 1);
    }
}

pub(super) async fn one_of_many_creations_wins(harness: &dyn Harness) {
    let f = Fixture::open(harness).await;
    for round in 0..5 {
        let queue = f.store.queue(&format!("contested-{round}"));
        let next = Arc::new(AtomicUsize::new(0));
        let won = race(harness, &f, move |backend, _| {
            let (queue, next) = (queue.clone(), Arc::clone(&next));
            Box::pin(async move {
                let owner = next.fetch_add(1, SeqCst).to_string();
                let owner = metadata(&[("owner", &owner)]);
                match backend.create_queue(&queue, &owner).await {
                    Err(error) if error.kind() == ErrorKind::QueueExists => false,
                    created => created.expect("created or refused") == Created::New,
                }
            })
        });
        assert_eq!(won.await, 1);
    }
}

type Attempt = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Counts the successes among concurrent attempts.
async fn race(
    harness: &dyn Harness,
    f: &Fixture,
    attempt: impl Fn(Arc<dyn Backend>, QueueName) -> Attempt + Send,
) -> usize {
    let won = Arc::new(AtomicUsize::new(0));
    let tasks = (0..8).map(|_| {
        let (attempt, won) = (
            attempt(Arc::clone(&f.backend), f.queue.clone()),
            Arc::clone(&won),
        );
        harness.spawn(Box::pin(async move {
            if attempt.await {
                won.fetch_add(1, SeqCst);
            }
        }))
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    won.load(SeqCst)
}

/// Yields to other tasks.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
