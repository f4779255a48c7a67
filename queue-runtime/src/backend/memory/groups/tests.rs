//! Every history of a small world: two groups and three consumers, which receive, complete, put back, lose their leases and
//! remove messages that lie behind.

use std::collections::BTreeMap;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{Metadata, NewMessage, PopReceipt, StorageId};
use queue_core::store_clock::BEHIND;

use super::super::store::StoredQueues;

const QUEUE: QueueName = QueueName::from_static("orders");
const GROUPS: [&str; 2] = ["a", "b"];
const PUTS: [usize; 2] = [3, 1];
const CONSUMERS: usize = 3;
const LEASE: i64 = 2_000_000;
const TICK: i64 = 1_000_000;
const DEPTH: usize = 9;

/// A lease, whether it has ended or not: a consumer may not know.
#[derive(Debug, Clone)]
struct Held {
    id: StorageId,
    receipt: PopReceipt,
    group: usize,
    until: i64,
}

#[derive(Clone)]
struct World {
    storage: StoredQueues,
    now: i64,
    consumers: [Option<Held>; CONSUMERS],
    /// The messages of each group that are not gone, in the order of their puts.
    stored: [Vec<StorageId>; 2],
    puts: [usize; 2],
    fences: [u64; 2],
    /// What was done, to be told if something is wrong.
    history: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Put(usize),
    /// By the first consumer that holds nothing.
    Receive,
    Complete(usize),
    PutBack(usize),
    /// The consumer forgets what it holds, as if it were killed.
    Die(usize),
    RemoveLast(usize),
    Tick,
}

impl World {
    fn new() -> Self {
        let mut storage = StoredQueues::default();
        storage.create(&QUEUE, &Metadata::new()).expect("created");
        Self {
            storage,
            now: 0,
            consumers: [const { None }; CONSUMERS],
            stored: Default::default(),
            puts: [0; 2],
            fences: [0; 2],
            history: Vec::new(),
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Tick];
        for (group, most) in PUTS.into_iter().enumerate() {
            if self.puts[group] < most {
                steps.push(Step::Put(group));
            }
            if self.stored[group].len() > 1 {
                steps.push(Step::RemoveLast(group));
            }
        }
        if self.consumers.iter().any(Option::is_none) {
            steps.push(Step::Receive);
        }
        for (at, consumer) in self.consumers.iter().enumerate() {
            if consumer.is_some() {
                steps.extend([Step::Complete(at), Step::PutBack(at), Step::Die(at)]);
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        self.history.push(step);
        match step {
            Step::Tick => self.now += TICK,
            Step::Put(group) => {
                let message = NewMessage::new("one").with_group(Some(GROUPS[group]));
                let put = self.storage.put(&QUEUE, &message, self.now).expect("put");
                self.stored[group].push(put.receipt().id);
                self.puts[group] += 1;
            }
            Step::Receive => self.receive(),
            Step::Complete(at) => {
                let held = self.consumers[at].take().expect("it holds one");
                let (id, receipt) = (&held.id, &held.receipt);
                let deleted = self.storage.delete(&QUEUE, id, receipt, self.now);
                if deleted.is_ok() {
                    self.stored[held.group].retain(|stored| stored != id);
                } else {
                    assert!(
                        held.until <= self.now,
                        "a lease is lost: {:?}",
                        self.history
                    );
                }
            }
            Step::PutBack(at) => {
                let held = self.consumers[at].take().expect("it holds one");
                let later = Some(Duration::from_micros(TICK.unsigned_abs()));
                let (id, receipt) = (&held.id, &held.receipt);
                let put_back = self
                    .storage
                    .update(&QUEUE, id, receipt, (later, None), self.now);
                assert!(
                    put_back.is_ok() || held.until <= self.now,
                    "{:?}",
                    self.history
                );
            }
            Step::Die(at) => self.consumers[at] = None,
            Step::RemoveLast(group) => {
                let last = self.stored[group].pop().expect("there are two");
                let page = self
                    .storage
                    .browse(&QUEUE, None, 10, self.now)
                    .expect("browsed");
                let mut messages = page.messages.iter();
                let found = messages.find(|one| one.id == last).expect("it is stored");
                let removed = self.storage.delete(&QUEUE, &last, &found.receipt, self.now);
                removed.expect("removed");
            }
        }
        self.check();
    }

    fn receive(&mut self) {
        let lease = Duration::from_micros(LEASE.unsigned_abs());
        let received = self
            .storage
            .receive(&QUEUE, 1, lease, self.now)
            .expect("received");
        let Some(message) = received.into_iter().next() else {
            return;
        };
        let message = message.received(self.now);
        let group = self
            .stored
            .iter()
            .position(|all| all.first() == Some(&message.id));
        let group =
            group.unwrap_or_else(|| panic!("not the first of its group: {:?}", self.history));
        let others = self.consumers.iter().flatten();
        let mut others = others.filter(|held| held.group == group && held.until > self.now);
        assert!(others.next().is_none(), "two at a time: {:?}", self.history);
        let fence = message.fence.expect("it has a group");
        assert!(
            fence > self.fences[group],
            "an old fence: {:?}",
            self.history
        );
        self.fences[group] = fence;
        let free = self
            .consumers
            .iter_mut()
            .find(|one| one.is_none())
            .expect("one is free");
        *free = Some(Held {
            id: message.id,
            receipt: message.receipt,
            group,
            until: self.now + LEASE,
        });
    }

    /// One message of each group is in the schedule, the first, unless there is none.
    fn check(&mut self) {
        let queue = self.storage.queue(&QUEUE).expect("it exists");
        let mut standing = BTreeMap::<&str, usize>::new();
        for message in queue.messages.values() {
            let grouped = message.grouped.as_ref().expect("it has a group");
            let stands = usize::from(message.visible_at != BEHIND);
            *standing.entry(&*grouped.group).or_default() += stands;
        }
        assert!(
            standing.values().all(|one| *one == 1),
            "{standing:?}: {:?}",
            self.history
        );
        let stored = self.stored.iter().map(Vec::len).sum::<usize>();
        assert_eq!(queue.messages.len(), stored, "{:?}", self.history);
    }

    /// Takes all histories of so many steps, and returns how many there are.
    fn explore(&self, depth: usize) -> usize {
        if depth == 0 {
            return 1;
        }
        let explored = self.steps().into_iter().map(|step| {
            let mut next = self.clone();
            next.take(step);
            next.explore(depth - 1)
        });
        explored.sum()
    }
}

#[test]
fn no_history_breaks_the_order_of_a_group_or_leaves_one_behind() {
    let histories = World::new().explore(DEPTH);
    println!("{histories} histories");
    assert!(histories > 100_000);
}
