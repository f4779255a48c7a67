use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use metrics::Counter;

use super::transactions::{KINDS, TransactionCounts, TransactionKind};
use crate::kernel::observe::Measures;

/// The counters of one queue.
#[derive(Debug)]
pub(super) struct Counters {
    counts: [AtomicU64; KINDS],
    /// The same for the application's metrics, each registered when it is first needed.
    exported: [OnceLock<Counter>; KINDS],
    /// The other metrics of the queue.
    pub(super) measures: Arc<Measures>,
}

impl Counters {
    /// Creates the counters of a queue, with the label that its metrics have.
    pub(super) fn new(label: &str) -> Self {
        Self {
            counts: Default::default(),
            exported: Default::default(),
            measures: Arc::new(Measures::new(label)),
        }
    }

    pub(super) fn add(&self, kind: TransactionKind, transactions: u64) {
        self.counts[kind as usize].fetch_add(transactions, Ordering::Relaxed);
        let exported = &self.exported[kind as usize];
        let exported = exported.get_or_init(|| self.measures.transactions(kind.as_str()));
        exported.increment(transactions);
    }

    pub(super) fn read(&self) -> TransactionCounts {
        TransactionCounts::new(|kind| self.counts[kind as usize].load(Ordering::Relaxed))
    }
}
