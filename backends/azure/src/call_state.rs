//! The state of a call that the SDK's pipeline must not see or does not know: the pop receipt, which it
//! would log, and whether the request was sent.

use std::sync::atomic::{AtomicBool, Ordering};

use queue_core::backend::PopReceipt;
use queue_core::internal::debug_fields;

/// The state of one call, carried by the pipeline's context to the transport.
pub(super) struct CallState {
    /// The receipt that replaces [`RECEIPT_PLACEHOLDER`].
    pub(super) receipt: Option<PopReceipt>,
    sent: AtomicBool,
}

/// A placeholder for the pop receipt in a URL, until the transport replaces it.
pub(super) const RECEIPT_PLACEHOLDER: &str = "held-back";

/// The header that carries an update's new receipt, under a name that no log treats as harmless.
pub(super) const NEW_RECEIPT_HEADER: &str = "x-held-back";

impl CallState {
    pub(super) fn new(receipt: Option<PopReceipt>) -> Self {
        Self {
            receipt,
            sent: AtomicBool::new(false),
        }
    }

    /// Records that the request may reach the service from now on.
    pub(super) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }
}

debug_fields!(CallState {});
