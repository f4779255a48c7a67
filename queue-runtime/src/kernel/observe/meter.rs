//! The counters of all queues, found without a lock.
//!
//! A queue's counters stand in one of a few slots that the hash of its name determines. A slot is filled once and never
//! emptied, so finding it is a few loads, and counting an addition.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use metrics::Counter;
use queue_core::internal::as_u64;
use queue_core::{Error, QueueName};
use rapidhash::v3::rapidhash_v3;

use super::measures::{Measures, describe};
use super::transactions::{KINDS, MeterReading, TransactionCounts, TransactionKind};

/// The most queues that are counted one by one.
const SLOTS: usize = 1024;

/// How many slots a queue's counters may be in. When other queues have taken all its slots, a queue is counted among
/// the others.
const PROBES: usize = 16;

/// Counts the transactions of one service.
#[derive(Debug)]
pub(crate) struct Meter {
    slots: Box<[OnceLock<Box<Slot>>]>,
    /// Counters of the queues without a slot.
    others: QueueCounters,
    /// Counters of all reply queues, which get no slots: each asking instance has its own, and messages name them.
    replies: QueueCounters,
    /// Counters of requests that are on no queue.
    account: QueueCounters,
    /// The first error that only a restart of the process ends.
    broken: OnceLock<Error>,
}

#[derive(Debug)]
struct Slot {
    queue: QueueName,
    counters: QueueCounters,
}

impl Meter {
    pub(crate) fn new() -> Self {
        describe();
        Self {
            slots: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            // The name of a queue has no underscore.
            others: QueueCounters::new("_other"),
            replies: QueueCounters::new("_replies"),
            account: QueueCounters::new("_account"),
            broken: OnceLock::new(),
        }
    }

    /// Returns the counters of a queue: for a reply queue, those of all reply queues.
    pub(crate) fn queue(&self, queue: &QueueName) -> &QueueCounters {
        // Nearly always the first slot, and never that of a reply queue.
        match self.slots[first_slot(queue)].get() {
            Some(slot) if slot.queue == *queue => &slot.counters,
            _ => self.find_or_fill(queue),
        }
    }

    fn find_or_fill(&self, queue: &QueueName) -> &QueueCounters {
        if queue.is_reply_queue() {
            return &self.replies;
        }
        let slots = self.probes(queue).map(|slot| {
            let new = || {
                Box::new(Slot {
                    queue: queue.clone(),
                    counters: QueueCounters::new(queue.as_str()),
                })
            };
            // Another task may fill the slot, also for another queue.
            slot.get_or_init(new)
        });
        let mut own = slots.filter(|slot| slot.queue == *queue);
        own.next().map_or(&self.others, |slot| &slot.counters)
    }

    /// Returns the metrics of a queue, besides its transactions.
    pub(crate) fn measures(&self, queue: &QueueName) -> &Arc<Measures> {
        &self.queue(queue).measures
    }

    /// Notes a failed call.
    pub(crate) fn failed(&self, error: &Error) {
        if error.needs_restart() {
            self.broken.get_or_init(|| error.clone());
        }
    }

    /// Why calls fail until the process is started again, if they do.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.get()
    }

    pub(crate) fn account(&self) -> &QueueCounters {
        &self.account
    }

    /// Returns the transactions on a queue so far, without reserving counters for it.
    pub(crate) fn of(&self, queue: &QueueName) -> TransactionCounts {
        if queue.is_reply_queue() {
            return self.replies.read();
        }
        let filled = self.probes(queue).map_while(OnceLock::get);
        let mut own = filled.filter(|slot| slot.queue == *queue);
        own.next()
            .map_or_else(TransactionCounts::default, |slot| slot.counters.read())
    }

    /// Returns all transactions so far.
    pub(crate) fn read(&self) -> MeterReading {
        let filled = self.slots.iter().filter_map(OnceLock::get);
        let queues = filled.map(|slot| (slot.queue.clone(), slot.counters.read()));
        MeterReading {
            queues: queues.collect(),
            replies: self.replies.read(),
            others: self.others.read(),
            account: self.account.read(),
        }
    }

    fn probes(&self, queue: &QueueName) -> impl Iterator<Item = &OnceLock<Box<Slot>>> {
        let first = first_slot(queue);
        (0..PROBES).map(move |probe| &self.slots[(first + probe) % SLOTS])
    }
}

/// Names that were chosen so that they collide only cause queues to be counted together, as others.
fn first_slot(queue: &QueueName) -> usize {
    rapidhash_v3(queue.as_str().as_bytes()) as usize % SLOTS
}

/// The counters of one queue.
#[derive(Debug)]
pub(crate) struct QueueCounters {
    counts: [AtomicUsize; KINDS],
    /// The counters of the application's metrics, each registered when it is first needed.
    exported: [OnceLock<Counter>; KINDS],
    /// The other metrics of the queue.
    pub(crate) measures: Arc<Measures>,
}

impl QueueCounters {
    /// Creates the counters of a queue, with the label that its metrics have.
    pub(crate) fn new(label: &str) -> Self {
        Self {
            counts: Default::default(),
            exported: Default::default(),
            measures: Arc::new(Measures::new(label)),
        }
    }

    pub(crate) fn add(&self, kind: TransactionKind, transactions: usize) {
        self.counts[kind as usize].fetch_add(transactions, Ordering::Relaxed);
        let exported = &self.exported[kind as usize];
        let exported = exported.get_or_init(|| self.measures.transactions(kind.as_str()));
        exported.increment(as_u64(transactions));
    }

    pub(crate) fn read(&self) -> TransactionCounts {
        TransactionCounts::new(|kind| self.counts[kind as usize].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_beyond_the_bound_are_counted_together() {
        let meter = Meter::new();
        let names: Vec<QueueName> = (0..3 * SLOTS)
            .map(|number| format!("queue-{number}").parse().expect("a name"))
            .collect();
        for _ in 0..2 {
            for name in &names {
                meter.queue(name).add(TransactionKind::Put, 1);
            }
        }
        let reading = meter.read();
        assert!(reading.queues().count() <= SLOTS);
        assert!(reading.queues().all(|(_, each)| each.total() == 2));
        let counted = reading.queues().count();
        assert!(counted > SLOTS / 2, "{counted}");
        assert_eq!(reading.total().total(), 6 * SLOTS);
        assert_eq!(reading.other_queues().total(), 6 * SLOTS - 2 * counted);
    }

    #[test]
    fn reply_queues_are_counted_together_and_take_no_slots() {
        let meter = Meter::new();
        for _ in 0..2 * SLOTS {
            let replies = QueueName::random_reply_queue();
            meter.queue(&replies).add(TransactionKind::Put, 1);
        }
        let all = 2 * SLOTS;
        let reading = meter.read();
        assert_eq!(reading.queues().count(), 0);
        assert_eq!(reading.other_queues().total(), 0);
        assert_eq!(reading.reply_queues().of(TransactionKind::Put), all);
        assert_eq!(reading.total().total(), all);
        assert_eq!(meter.of(&QueueName::random_reply_queue()).total(), all);
        meter
            .queue(&QueueName::random_reply_queue())
            .add(TransactionKind::Delete, 1);
        let since = meter.read().since(&reading);
        assert_eq!(since.reply_queues().total(), 1);
    }

    #[test]
    fn threads_that_count_on_new_queues_at_once_lose_nothing() {
        const QUEUES: usize = 200;
        let meter = Meter::new();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for number in 0..QUEUES {
                        let queue = format!("queue-{number}").parse().expect("a name");
                        meter.queue(&queue).add(TransactionKind::Delete, 1);
                    }
                });
            }
        });
        let reading = meter.read();
        assert_eq!(reading.total().of(TransactionKind::Delete), 4 * QUEUES);
        assert!(reading.queues().all(|(_, each)| each.total() == 4));
    }
}
