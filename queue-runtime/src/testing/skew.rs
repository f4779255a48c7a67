use std::time::Duration;

use queue_core::Timestamp;
use queue_core::backend::{
    BrowsedMessage, Lease, OpOutcome, Page, PeekedMessage, PutReceipt, ReceivedMessage,
};

/// The difference between the storage's clock and the actual time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Skew {
    Ahead(Duration),
    Behind(Duration),
}

impl Skew {
    pub(super) const NONE: Self = Self::Ahead(Duration::ZERO);

    pub(super) fn put(self, mut put: PutReceipt) -> PutReceipt {
        self.shift(&mut put.inserted_at);
        self.shift(&mut put.visible_at);
        put.expires_at.iter_mut().for_each(|at| self.shift(at));
        put
    }

    pub(super) fn received(self, mut message: ReceivedMessage) -> ReceivedMessage {
        self.shift(&mut message.inserted_at);
        self.shift(&mut message.received_at);
        self.shift(&mut message.visible_at);
        message.expires_at.iter_mut().for_each(|at| self.shift(at));
        message
    }

    pub(super) fn peeked(self, mut message: PeekedMessage) -> PeekedMessage {
        self.shift(&mut message.inserted_at);
        message.expires_at.iter_mut().for_each(|at| self.shift(at));
        message
    }

    pub(super) fn page(self, mut page: Page) -> Page {
        self.shift(&mut page.now);
        let messages = page.messages.into_iter();
        page.messages = messages.map(|one| self.browsed(one)).collect();
        page
    }

    pub(super) fn browsed(self, mut message: BrowsedMessage) -> BrowsedMessage {
        self.shift(&mut message.inserted_at);
        self.shift(&mut message.read_at);
        self.shift(&mut message.visible_at);
        message.expires_at.iter_mut().for_each(|at| self.shift(at));
        message
    }

    pub(super) fn lease(self, mut lease: Lease) -> Lease {
        self.shift(&mut lease.visible_at);
        lease
    }

    pub(super) fn outcome(self, outcome: OpOutcome) -> OpOutcome {
        match outcome {
            OpOutcome::Put(put) => OpOutcome::Put(self.put(put)),
            OpOutcome::Updated(lease) => OpOutcome::Updated(self.lease(lease)),
            other => other,
        }
    }

    fn shift(self, time: &mut Timestamp) {
        *time = match self {
            Self::Ahead(by) => time.checked_add(by).unwrap_or(Timestamp::MAX),
            Self::Behind(by) => time.checked_sub(by).unwrap_or(Timestamp::MIN),
        };
    }
}
