use std::time::Duration;

/// The shortest interval.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);
/// The longest interval.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The maximum number of missed ticks that [`Missed::All`](super::Missed::All) submits.
pub const MAX_MISSED: u32 = 1000;
