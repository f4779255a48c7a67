//! What a missing message, or a stale receipt, proves about a settlement.
//!
//! `docs/states.md` has the rules of [`Evidence::proof`] as a table. A test compares [`Evidence::proof`] with a model
//! of what may really have happened.

use queue_core::backend::StaleReceipts;
use queue_core::{Error, ErrorKind};

use super::unanswered::Earlier;

/// What is known when a settlement is answered with a stale receipt or a missing message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) request: LastOp,
    pub(super) answer: Gone,
    pub(super) stale_receipts: StaleReceipts,
    /// The earlier settlements that got no answer.
    pub(super) earlier: Earlier,
    /// Whether a renewal got no answer, and may have changed the receipt and the end of the lease.
    pub(super) renewal_unanswered: bool,
    /// Whether the end of the lease that we know of has passed, so that another consumer may have received
    /// the message.
    pub(super) lease_may_have_ended: bool,
    pub(super) may_have_expired: bool,
}

/// The operation that the backend was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LastOp {
    /// To delete the message, when all puts are known to be stored.
    Delete,
    /// To put messages, or to record that the work is done, and delete the received one, in one step.
    DeleteWithPuts,
    PutBack,
}

/// What a settlement was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Gone {
    NotFound,
    Mismatch,
}

/// What the evidence proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The settlement was carried out.
    CarriedOut,
    /// Nothing was carried out, and the lease is lost.
    LeaseLost,
    /// Nothing was carried out, and the message has expired.
    Expired,
    /// Nothing was carried out. The lease may last, with a receipt that we do not know.
    NotCarriedOut,
    /// The settlement may have been carried out or not.
    Nothing,
}

impl Gone {
    /// Returns `None` unless the error is a `Gone`.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error.kind() {
            ErrorKind::MessageNotFound => Some(Self::NotFound),
            ErrorKind::ReceiptMismatch => Some(Self::Mismatch),
            _ => None,
        }
    }
}

impl Evidence {
    pub(super) fn proof(&self) -> Proof {
        if self.earlier == Earlier::Other {
            return Proof::Nothing;
        }
        let distinct = self.stale_receipts == StaleReceipts::Distinct;
        let exists = distinct && self.answer == Gone::Mismatch;
        let expired = self.may_have_expired && !exists;
        // Nobody but this consumer can have changed the message.
        let only_we = !self.lease_may_have_ended && !self.renewal_unanswered && !expired;
        let tried = self.earlier == Earlier::Same;
        let carried_out = match (self.request, self.answer) {
            // The network may have delivered two copies, even of the first try.
            (LastOp::Delete, Gone::NotFound) => only_we,
            (LastOp::DeleteWithPuts, Gone::NotFound) => only_we && tried,
            (LastOp::Delete | LastOp::DeleteWithPuts, Gone::Mismatch) => false,
            // A put-back makes its own receipt stale.
            (LastOp::PutBack, _) => only_we && tried,
        };
        let deleted_nothing = exists && self.request != LastOp::PutBack;
        if carried_out {
            Proof::CarriedOut
        } else if tried && !deleted_nothing {
            Proof::Nothing
        } else if expired {
            Proof::Expired
        } else if self.renewal_unanswered && (exists || !distinct) {
            Proof::NotCarriedOut
        } else {
            Proof::LeaseLost
        }
    }
}

#[cfg(test)]
mod tests;
