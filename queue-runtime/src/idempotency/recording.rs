use std::time::Duration;

use bytes::Bytes;
use queue_core::idempotency::Standing;
use queue_core::{Error, Result, Retry};

use super::held::{HeldClaim, no_answer};
use crate::policy::{jitter, outage_pause};

/// Records the result of a claim, and tries again for up to `patience` while the store fails.
///
/// # Errors
/// The last error of the store. The result may have been recorded.
pub(crate) async fn finish_within(
    claim: &HeldClaim,
    result: Bytes,
    retention: Duration,
    patience: Duration,
) -> Result<Standing, Error> {
    let clock = claim.clock();
    let give_up_at = clock.monotonic().saturating_add(patience);
    let mut failures = 0;
    loop {
        let finished = tokio::select! {
            finished = claim.finish(result.clone(), retention) => finished,
            () = clock.sleep_until(give_up_at) => Err(no_answer()),
        };
        let error = match finished {
            Ok(standing) => return Ok(standing),
            Err(error) => error,
        };
        failures += 1;
        let pause = outage_pause(error.retry(), failures, jitter());
        let left = give_up_at.saturating_sub(clock.monotonic());
        if error.retry() == Retry::Permanent || pause >= left {
            return Err(error);
        }
        let key = claim.key();
        tracing::warn!(%key, %error, ?pause, "failed to record a result; will retry");
        clock.sleep(pause).await;
    }
}
