//! Every history of a small world: two groups and three consumers, which receive, complete, put back, lose their leases and
//! remove messages that lie behind.

use std::collections::BTreeMap;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::backend::{
    GROUP_LIMIT, GroupLimit, Introduced, Metadata, NewMessage, PopReceipt, PutBackPlace, StorageId,
};
use queue_core::store_clock::BEHIND;

use super::super::message::Change;
use super::super::store::StoredQueues;
use super::Stand;

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
    limit: GroupLimit,
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
    fn new(limit: &str) -> Self {
        let mut storage = StoredQueues::default();
        let mut metadata = Metadata::new();
        metadata.insert(GROUP_LIMIT, limit).expect("valid");
        storage.create(&QUEUE, &metadata).expect("created");
        Self {
            limit: limit.parse().expect("a limit"),
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
            let last = self.stored[group].last();
            let mut held = self.consumers.iter().flatten().map(|held| &held.id);
            if self.stored[group].len() > 1 && !held.any(|id| Some(id) == last) {
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
                let later = Duration::from_micros(TICK.unsigned_abs());
                let later = Change::PutBack(PutBackPlace::After(later));
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
            .receive(&QUEUE, 1, lease, self.now, &Introduced::default())
            .expect("received");
        let Some(message) = received.into_iter().next() else {
            return;
        };
        let message = message.received(self.now);
        let is_of = |all: &Vec<StorageId>| all.contains(&message.id);
        let group = self.stored.iter().position(is_of).expect("it is stored");
        if self.limit.is_in_order() {
            let first = self.stored[group].first();
            assert_eq!(first, Some(&message.id), "{:?}", self.history);
        }
        let others = self.consumers.iter().flatten();
        let others = others.filter(|held| held.group == group && held.until > self.now);
        assert!(
            (others.count() as u64) < self.limit.at_once(),
            "above the limit: {:?}",
            self.history
        );
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

    /// Of each group, no more messages stand than may, and the next one stands if one more may.
    fn check(&mut self) {
        let queue = self.storage.queue(&QUEUE).expect("it exists");
        let mut stands = BTreeMap::<&str, [u64; 3]>::new();
        for message in queue.messages.values() {
            let grouped = message.grouped.as_ref().expect("it has a group");
            let is_behind = grouped.stand == Stand::Behind;
            assert_eq!(
                message.visible_at == BEHIND,
                is_behind,
                "{:?}",
                self.history
            );
            stands.entry(&*grouped.group).or_default()[grouped.stand as usize] += 1;
        }
        for [behind, waiting, held] in stands.into_values() {
            let at_once = self.limit.at_once();
            let is_settled = behind == 0 || waiting == 1 || held == at_once;
            assert!(
                is_settled && waiting <= 1 && held + waiting <= at_once,
                "{behind} behind, {waiting} wait, {held} held: {:?}",
                self.history
            );
        }
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

fn explore(limit: &str) {
    let histories = World::new(limit).explore(DEPTH);
    println!("{histories} histories");
    assert!(histories > 100_000);
}

#[test]
fn no_history_breaks_the_order_of_a_group_or_leaves_one_behind() {
    explore("order");
}

#[test]
fn no_history_is_above_the_limit_of_a_group_or_leaves_one_behind() {
    explore("2");
}

#[test]
fn no_history_leaves_one_behind_if_there_is_no_limit() {
    explore("unlimited");
}
