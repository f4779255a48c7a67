use std::time::Duration;

/// A handler in a hundred takes longer than its 99th percentile. The lease is renewed after half of the visibility
/// timeout, which leaves room for a storage that is slow.
const MARGIN: u32 = 3;

/// The shortest visibility timeout: processes are paused for seconds now and then.
const SHORTEST: Duration = Duration::from_secs(5);

/// Returns the visibility timeout of a receive, from the 99th percentile of the handler's time: three times as long,
/// in whole seconds, at least 5 s, and at most the configured one.
pub(crate) fn receive_visibility(p99: Duration, configured: Duration) -> Duration {
    let adapted = p99.saturating_mul(MARGIN).max(SHORTEST);
    let seconds = adapted
        .as_secs()
        .saturating_add(u64::from(adapted.subsec_nanos() > 0));
    Duration::from_secs(seconds).min(configured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_handler_below_the_configured_value() {
        let configured = Duration::from_secs(30);
        for (p99, expected) in [(0, 5), (1_000, 5), (2_000, 6), (2_100, 7), (10_000, 30)] {
            let p99 = Duration::from_millis(p99);
            let expected = Duration::from_secs(expected);
            assert_eq!(receive_visibility(p99, configured), expected, "{p99:?}");
        }
        assert_eq!(receive_visibility(Duration::MAX, configured), configured);
        let short = Duration::from_millis(1_500);
        assert_eq!(receive_visibility(Duration::ZERO, short), short);
    }
}
