//! Conversion of operations to requests, and of rows to the contract's types. It happens on the
//! caller's thread, to keep the writer's free.

use queue_core::backend::{Lease, Op, OpOutcome, PutReceipt, ReceivedMessage};

use super::command::{Claimed, Placed, Step, StepDone};
use super::receipt::{self, Handle};
use crate::backend::store_clock::timestamp;

impl Step {
    pub(super) fn from_op(op: Op) -> Self {
        match op {
            Op::Put { queue, message } => Self::Put { queue, message },
            Op::Update {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => Self::Update {
                queue,
                handle: Handle::parse(&id, &receipt),
                visibility,
                body,
            },
            Op::Delete { queue, id, receipt } => Self::Delete {
                queue,
                handle: Handle::parse(&id, &receipt),
            },
            _ => unreachable!("`apply` checks the operations before it sends them"),
        }
    }
}

impl StepDone {
    pub(super) fn into_outcome(self) -> OpOutcome {
        match self {
            Self::Put(placed) => OpOutcome::Put(placed.into_receipt()),
            Self::Updated { visible_at, nonce } => OpOutcome::Updated(lease(visible_at, nonce)),
            Self::Deleted => OpOutcome::Deleted,
        }
    }
}

impl Placed {
    pub(super) fn into_receipt(self) -> PutReceipt {
        let mut put = PutReceipt::new(
            receipt::storage_id(self.seq, self.salt),
            receipt::pop_receipt(self.visible_at, self.nonce),
            timestamp(self.inserted_at),
            timestamp(self.visible_at),
        );
        put.expires_at = self.expires_at.map(timestamp);
        put
    }
}

impl Claimed {
    pub(super) fn into_received(self) -> ReceivedMessage {
        let put = self.placed.into_receipt();
        let received_at = timestamp(self.received_at);
        let mut received =
            ReceivedMessage::new(put.id, put.receipt, self.body, put.inserted_at, received_at);
        received.dequeue_count = self.dequeue_count;
        received.expires_at = put.expires_at;
        received.visible_at = put.visible_at;
        received
    }
}

pub(super) fn lease(visible_at: i64, nonce: i64) -> Lease {
    Lease::new(
        receipt::pop_receipt(visible_at, nonce),
        timestamp(visible_at),
    )
}
