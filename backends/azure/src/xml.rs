//! What of the XML of requests and replies depends on the contract of a backend.

use std::time::Duration;

use queue_core::Result;
use queue_core::backend::Limits;
use queue_core::internal::xml_text;

/// Returns the body as text, or an error if XML cannot carry it unchanged.
pub(super) fn checked<'b>(body: &'b [u8], limits: &Limits<'_>) -> Result<&'b str> {
    xml_text(body)
        .map_err(|problem| limits.invalid(format!("{problem}; encode the body as Base64")))
}

/// Converts a duration to whole seconds, rounded up.
pub(super) fn seconds(duration: Duration) -> i32 {
    let part = u64::from(duration.subsec_nanos() > 0);
    let whole = duration.as_secs().saturating_add(part);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(30)), 30);
        assert_eq!(seconds(Duration::MAX), i32::MAX);
    }
}
