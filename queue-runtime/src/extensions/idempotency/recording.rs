use std::time::Duration;

use bytes::Bytes;
use queue_core::idempotency::{ClaimStatus, MAX_RESULT};
use queue_core::{Error, ErrorKind, Operation, Result, RetryAdvice};

use super::held::{HeldClaim, no_answer};
use crate::kernel::clock::ready_by;
use crate::kernel::policy::{jitter, outage_pause};

/// Records the result of a claim, and tries again for up to `patience` while the store fails.
///
/// # Errors
/// The last error of the store: the result may have been recorded. [`ErrorKind::TooLarge`] if the result has more
/// than [`MAX_RESULT`] bytes, for whichever store.
pub(crate) async fn finish_within(
    claim: &HeldClaim,
    result: Bytes,
    retention: Duration,
    patience: Duration,
) -> Result<ClaimStatus, Error> {
    if result.len() > MAX_RESULT {
        let length = result.len();
        let detail = format!("the result has {length} bytes; the maximum is {MAX_RESULT}");
        let error = Error::new(ErrorKind::TooLarge, Operation::Idempotency);
        return Err(error.with_detail(detail).unsent());
    }
    let clock = claim.clock();
    let give_up_at = clock.monotonic().saturating_add(patience);
    let mut failures = 0;
    loop {
        let finish = claim.finish(result.clone(), retention);
        let finished = ready_by(&*clock, give_up_at, finish).await;
        let error = match finished.unwrap_or_else(|| Err(no_answer())) {
            Ok(standing) => return Ok(standing),
            Err(error) => error,
        };
        failures += 1;
        let pause = outage_pause(error.retry(), failures, jitter());
        let left = give_up_at.saturating_sub(clock.monotonic());
        if error.retry() == RetryAdvice::Permanent || pause >= left {
            return Err(error);
        }
        let key = claim.key();
        tracing::warn!(%key, %error, ?pause, "failed to record a result; will retry");
        clock.sleep(pause).await;
    }
}
