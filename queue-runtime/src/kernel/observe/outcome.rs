/// How a received message was settled, as metrics and spans say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Completed,
    Duplicate,
    Retried,
    Released,
    Postponed,
    Poisoned,
    Unsettled,
}

/// The number of outcomes.
pub(super) const OUTCOMES: usize = 7;

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Duplicate => "duplicate",
            Self::Retried => "retried",
            Self::Released => "released",
            Self::Postponed => "postponed",
            Self::Poisoned => "poisoned",
            Self::Unsettled => "unsettled",
        }
    }

    /// Returns whether the attempt failed, or its outcome could not be stored.
    pub(super) fn is_error(self) -> bool {
        matches!(self, Self::Retried | Self::Poisoned | Self::Unsettled)
    }
}
