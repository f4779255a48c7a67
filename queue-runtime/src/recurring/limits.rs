use std::time::Duration;

/// The shortest interval.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);
/// The longest interval.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The most missed ticks that [`Missed::All`](super::Missed::All) makes up for.
pub const MAX_MISSED: u32 = 1000;
