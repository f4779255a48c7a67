//! Several clients of one store, clocks that are stepped back, and concurrent tasks: no message is lost or leased twice.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;

use super::harness::{
    Fixture, Harness, LONG, Load, Stepped, Survival, assert_lease_gone, assert_refused, metadata,
    text,
};
use crate::backend::{
    Backend, BackendExt as _, Created, Metadata, NewMessage, ReceivedMessage, StorageId,
};
use crate::error::ErrorKind;
use crate::name::QueueName;

pub(super) async fn a_second_client_sees_the_same(f: Fixture) {
    let other = f.store.second_client().await;
    assert_eq!(other.queue_uri(&f.queue), f.backend.queue_uri(&f.queue));
    f.put("one").await;
    let received = other.receive(&f.queue, 1, f.lease).await.expect("receive");
    assert_eq!(text(&received[0].body), "one");
    f.assert_nothing_visible().await;
    f.advance(f.lease * 2).await;
    let mine = f.receive_one().await;
    assert_eq!(mine.dequeue_count, 2);
    let theirs = &received[0];
    let stale = other.delete(&f.queue, &theirs.id, &theirs.receipt).await;
    assert_lease_gone(stale);
    f.delete(&mine).await.expect("delete");
    let properties = other.properties(&f.queue).await.expect("properties");
    assert_eq!(properties.approximate_count, 0);
}

pub(super) async fn a_receipt_is_good_for_every_client(f: Fixture) {
    let other = f.store.second_client().await;
    f.put("one").await;
    let message = f.receive_one().await;
    let deleted = other.delete(&f.queue, &message.id, &message.receipt).await;
    deleted.expect("delete");
    assert_lease_gone(f.delete(&message).await);
}

pub(super) async fn queues_made_and_deleted_elsewhere_are_noticed(f: Fixture) {
    let other = f.store.second_client().await;
    let queue = f.store.queue("fleeting");
    let missing = f.backend.put(&queue, NewMessage::new("early")).await;
    assert_refused(missing, ErrorKind::QueueNotFound);
    let created = other.create_queue(&queue, &Metadata::new()).await;
    created.expect("create");
    let put = f.backend.put(&queue, NewMessage::new("one")).await;
    put.expect("put");
    other.delete_queue(&queue).await.expect("delete");
    let put = f.backend.put(&queue, NewMessage::new("two")).await;
    assert_refused(put, ErrorKind::QueueNotFound);
    let received = f.backend.receive(&queue, 1, f.lease).await;
    assert_refused(received, ErrorKind::QueueNotFound);
    let listed = f.backend.list_queues(queue.as_str()).await;
    assert_eq!(listed.expect("list"), []);
}

pub(super) async fn a_queue_cleared_elsewhere_is_empty(f: Fixture) {
    let other = f.store.second_client().await;
    f.put("one").await;
    let message = f.receive_one().await;
    f.put("two").await;
    other.clear(&f.queue).await.expect("clear");
    f.assert_nothing_visible().await;
    assert_lease_gone(f.delete(&message).await);
    f.put("three").await;
    assert_eq!(f.drain().await, ["three"]);
}

pub(super) async fn reopening_finds_what_survives(mut f: Fixture) {
    let of_five = metadata(&[("poisonthreshold", "5")]);
    let set = f.backend.set_metadata(&f.queue, &of_five).await;
    set.expect("set metadata");
    f.put("leased").await;
    let leased = f.receive_for(1, LONG).await.pop().expect("visible");
    f.put("again").await;
    let again = f.receive_one().await;
    f.put_message(NewMessage::new("delayed").with_delay(f.lease * 2))
        .await;
    f.put("visible").await;

    f = f.reopen().await;

    if f.store.survival() == Survival::Gone {
        let missing = f.backend.properties(&f.queue).await;
        return assert_refused(missing, ErrorKind::QueueNotFound);
    }
    let properties = f.backend.properties(&f.queue).await.expect("properties");
    assert_eq!(properties.metadata, of_five);
    assert_eq!(properties.approximate_count, 4);
    assert_eq!(f.drain().await, ["visible"]);
    f.advance(f.lease).await;
    let received = f.receive_one().await;
    assert_eq!(received.id, again.id);
    assert_eq!(received.dequeue_count, 2);
    assert_lease_gone(f.delete(&again).await);
    f.delete(&leased).await.expect("the lease survived");
    f.advance(f.lease * 2).await;
    let mut bodies = f.drain().await;
    bodies.sort();
    assert_eq!(bodies, ["again", "delayed"]);
}

pub(super) async fn ids_are_not_given_again_after_reopening(mut f: Fixture) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        let put = f.put("one").await;
        let deleted = f.backend.delete(&f.queue, &put.id, &put.receipt).await;
        deleted.expect("delete");
        ids.push(put.id);
        f = f.reopen().await;
        if f.store.survival() == Survival::Gone {
            return;
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

pub(super) async fn a_clock_stepped_back_does_not_prolong_leases(f: Fixture) {
    f.put("one").await;
    let first = f.receive_one().await;
    f.put_message(NewMessage::new("delayed").with_delay(f.lease))
        .await;
    if f.store.step_back(Duration::from_secs(3600)) == Stepped::OutOfReach {
        return;
    }
    f.assert_nothing_visible().await;
    f.advance(f.lease).await;
    let mut bodies = f.drain().await;
    bodies.sort();
    assert_eq!(bodies, ["delayed", "one"]);
    assert_lease_gone(f.delete(&first).await);
}

pub(super) async fn a_clock_stepped_back_while_closed_hides_nothing_for_long(mut f: Fixture) {
    if f.store.survival() == Survival::Gone {
        return;
    }
    f.put("one").await;
    f.receive_one().await;
    if f.store.step_back(Duration::from_secs(3600)) == Stepped::OutOfReach {
        return;
    }
    f = f.reopen().await;
    f.put("two").await;
    assert_eq!(f.drain().await, ["two"], "what is put now is visible now");
    f.advance(f.lease * 2).await;
    assert_eq!(f.drain().await, ["one"]);
}

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
        let max = self.backend.capabilities().max_receive.min(WINDOW);
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
                match backend.renew(&queue, id, receipt, LONG, None).await {
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
