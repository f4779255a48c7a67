//! The requests that wait for a transaction, and how many of them share one.

use std::collections::VecDeque;

use bytes::Bytes;
use queue_core::backend::{Attachment, Op, Swap, SwapIf};

use crate::runs::attachment_of;
use crate::writer::{Job, Work};

/// What a transaction writes at most, except for its last request.
const MAX: Weight = Weight {
    operations: 1024,
    bytes: 8 * 1024 * 1024,
};

/// The part of [`MAX`] that puts have, whatever else is waiting.
const SHARE: Weight = Weight {
    operations: MAX.operations / 4,
    bytes: MAX.bytes / 4,
};

/// How many operations a swap counts for: it takes a lock of the server, of which there are few.
const SWAP: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
struct Weight {
    operations: usize,
    bytes: usize,
}

/// The requests that wait for a transaction. Renewals and settlements go first, because a late one loses its lease.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    leases: VecDeque<Job>,
    puts: VecDeque<Job>,
}

/// Returns the size of the data that operations bring beside their messages, in bytes.
pub(crate) fn new_data(op: &Op) -> usize {
    match attachment_of(op) {
        Some(Attachment::New(data)) => data.len(),
        _ => 0,
    }
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.puts.is_empty()
    }

    pub(crate) fn push(&mut self, job: Job) {
        if job.work.is_of_lease() {
            self.leases.push_back(job);
        } else {
            self.puts.push_back(job);
        }
    }

    /// Takes the requests of the next transaction.
    pub(crate) fn take(&mut self) -> Vec<Job> {
        let mut batch = Vec::new();
        let mut taken = Weight::default();
        taken.fill(&mut self.leases, MAX, &mut batch);
        let left = Weight {
            operations: MAX
                .operations
                .saturating_sub(taken.operations)
                .max(SHARE.operations),
            bytes: MAX.bytes.saturating_sub(taken.bytes).max(SHARE.bytes),
        };
        Weight::default().fill(&mut self.puts, left, &mut batch);
        batch
    }
}

impl Weight {
    /// Moves requests to the batch while there is room.
    fn fill(&mut self, jobs: &mut VecDeque<Job>, room: Self, batch: &mut Vec<Job>) {
        while self.operations < room.operations && self.bytes < room.bytes {
            let Some(job) = jobs.pop_front() else { return };
            let Self { operations, bytes } = job.work.weight();
            self.operations += operations;
            self.bytes += bytes;
            batch.push(job);
        }
    }
}

impl Work {
    /// Whether the request is about a lease that ends.
    pub(crate) fn is_of_lease(&self) -> bool {
        match self {
            Self::Apply(ops) => ops.iter().any(|op| op.received().is_some()),
            Self::Swap(swap) => matches!(swap.condition, SwapIf::Owner(_)),
            Self::Forget(_) | Self::Sweep => false,
        }
    }

    fn weight(&self) -> Weight {
        let of_swap = |swap: &Swap| swap.value().map_or(0, Bytes::len);
        let of_op = |op: &Op| match op {
            Op::Put { message, .. } => message.body.len() + new_data(op),
            Op::Renew { body, .. } | Op::PutBack { body, .. } => {
                body.as_ref().map_or(0, Bytes::len)
            }
            Op::Swap { swap, .. } => of_swap(swap),
            _ => 0,
        };
        let number_of = |op: &Op| match op {
            Op::Swap { .. } => SWAP,
            _ => 1,
        };
        let (operations, bytes) = match self {
            Self::Apply(ops) => (ops.iter().map(number_of).sum(), ops.iter().map(of_op).sum()),
            Self::Swap(swap) => (SWAP, of_swap(swap)),
            Self::Forget(_) | Self::Sweep => (1, 0),
        };
        Weight { operations, bytes }
    }
}
