use std::time::Duration;

use queue_core::envelope::PoisonReason;

/// The requests of this consumer that got no answer since its receipt was last known to be valid: each may have been
/// carried out, and have made the receipt stale.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Unanswered {
    pub(super) renewal: bool,
    settlements: Settlements,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Settlements {
    #[default]
    None,
    /// Tries of one settlement.
    Of(Intent),
    Several,
}

/// What a settlement is to do. Two settlements of one message with the same intent are tries of one settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Intent {
    pub(crate) purpose: Purpose,
    /// The number of messages that the settlement puts.
    pub(crate) puts: usize,
}

/// Why a message is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    Complete {
        /// A hash of the follow-ups, as far as they do not depend on the time.
        follow_ups: u64,
    },
    Retry {
        /// The requested delay, not that of a retry policy, which varies.
        after: Option<Duration>,
        /// A hash of the error, which the message keeps.
        error: u64,
    },
    Release,
    /// Postpone for a program that supports the message's version.
    Postpone,
    /// Postpone as the handler asked.
    PostponeFor(Duration),
    Poison {
        reason: PoisonReason,
        /// A hash of the error, which the poison record keeps.
        error: u64,
    },
}

/// The unanswered settlements before a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Earlier {
    Nothing,
    /// Tries of the same settlement only.
    Same,
    Other,
}

impl Unanswered {
    pub(super) fn any(&self) -> bool {
        self.renewal || !matches!(self.settlements, Settlements::None)
    }

    pub(super) fn add_settlement(&mut self, intent: &Intent) {
        self.settlements = match self.before(intent) {
            Earlier::Nothing | Earlier::Same => Settlements::Of(*intent),
            Earlier::Other => Settlements::Several,
        };
    }

    /// Returns the unanswered settlements before one with this intent.
    pub(super) fn before(&self, intent: &Intent) -> Earlier {
        match &self.settlements {
            Settlements::None => Earlier::Nothing,
            Settlements::Of(tried) if tried == intent => Earlier::Same,
            Settlements::Of(_) | Settlements::Several => Earlier::Other,
        }
    }
}
