//! The server's time, which never goes back for this process.

use std::time::Duration;

use tokio::time::Instant;

/// The time of the server, as far as this process has seen it.
#[derive(Debug)]
pub(crate) struct ServerTime {
    /// The highest time, in microseconds since the Unix epoch.
    latest: i64,
    advanced_at: Instant,
    warned_at: Option<Instant>,
}

/// How long the server's time may stand still before a warning, and how often the warning is repeated.
const STANDSTILL: Duration = Duration::from_secs(5);
const REPEATED: Duration = Duration::from_secs(60);

impl ServerTime {
    pub(crate) fn new() -> Self {
        Self {
            latest: 0,
            advanced_at: Instant::now(),
            warned_at: None,
        }
    }

    /// Returns the highest time that was seen, in microseconds since the Unix epoch.
    pub(crate) fn latest(&self) -> i64 {
        self.latest
    }

    /// Records the time of a statement. Returns how long the time has stood still, if that is to be told.
    pub(crate) fn see(&mut self, time: i64, at: Instant) -> Option<Duration> {
        if time > self.latest {
            (self.latest, self.advanced_at, self.warned_at) = (time, at, None);
            return None;
        }
        let still = at.duration_since(self.advanced_at);
        let is_told = self
            .warned_at
            .is_some_and(|told| at.duration_since(told) < REPEATED);
        if still < STANDSTILL || is_told {
            return None;
        }
        self.warned_at = Some(at);
        Some(still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_stands_still_is_told_once_a_minute() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut time = ServerTime {
            latest: 10,
            advanced_at: start,
            warned_at: None,
        };
        let seen = [
            (3, 10),
            (5, 10),
            (6, 9),
            (64, 10),
            (65, 10),
            (66, 11),
            (70, 11),
            (71, 11),
        ];
        let told =
            seen.map(|(seconds, now)| time.see(now, after(seconds)).map(|still| still.as_secs()));
        assert_eq!(
            told,
            [None, Some(5), None, None, Some(65), None, None, Some(5)]
        );
        assert_eq!(time.latest, 11);
    }
}
