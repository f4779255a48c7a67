//! Conversion of operations to requests, and of rows to the contract's types. It happens on the
//! caller's thread, to keep the writer's free.

use std::time::Duration;

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{
    Lease, NewMessage, Op, OpOutcome, PopReceipt, PutReceipt, ReceivedMessage, StorageId,
};
use queue_core::store_clock::timestamp;

use super::checksum::checksum;
use super::command::{Claimed, Parcel, Placed, Step, StepDone};
use super::receipt::{self, Handle};

impl Step {
    pub(super) fn put(queue: QueueName, message: NewMessage) -> Self {
        let salt = rand::random();
        let parcel = Parcel {
            salt,
            checksum: checksum(salt, &message.body),
            message,
        };
        Self::Put { queue, parcel }
    }

    pub(super) fn update(
        queue: QueueName,
        id: &StorageId,
        receipt: &PopReceipt,
        visibility: Duration,
        body: Option<Bytes>,
    ) -> Self {
        let handle = Handle::parse(id, receipt);
        Self::Update {
            queue,
            handle,
            visibility,
            body: body.map(|body| {
                let checksum = checksum(handle.salt, &body);
                (body, checksum)
            }),
        }
    }

    pub(super) fn from_op(op: Op) -> Self {
        match op {
            Op::Put { queue, message } => Self::put(queue, message),
            Op::Update {
                queue,
                id,
                receipt,
                visibility,
                body,
            } => Self::update(queue, &id, &receipt, visibility, body),
            Op::Delete { queue, id, receipt } => Self::Delete {
                queue,
                handle: Handle::parse(&id, &receipt),
            },
            Op::Swap { queue, swap } => Self::Swap { queue, swap },
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
            Self::Swapped => OpOutcome::Swapped,
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
        let salt = self.placed.salt;
        let put = self.placed.into_receipt();
        let received_at = timestamp(self.received_at);
        let (body, damage) = verified(self.body, salt, self.checksum);
        let mut received =
            ReceivedMessage::new(put.id, put.receipt, body, put.inserted_at, received_at);
        received.damage = damage;
        received.dequeue_count = self.dequeue_count;
        received.expires_at = put.expires_at;
        received.visible_at = put.visible_at;
        received
    }
}

/// Compares a body with its checksum. Returns it with what is wrong with it.
pub(super) fn verified(
    body: Result<Bytes, &'static str>,
    salt: i64,
    expected: Option<i64>,
) -> (Bytes, Option<Box<str>>) {
    match body {
        Ok(body) if expected == Some(checksum(salt, &body)) => (body, None),
        Ok(body) => {
            let damage = "the stored body does not match its checksum";
            (body, Some(damage.into()))
        }
        Err(damage) => (Bytes::new(), Some(damage.into())),
    }
}

pub(super) fn lease(visible_at: i64, nonce: i64) -> Lease {
    Lease::new(
        receipt::pop_receipt(visible_at, nonce),
        timestamp(visible_at),
    )
}
