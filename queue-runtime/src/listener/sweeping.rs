//! Sweeping the idempotency store of a listener.

use std::sync::Arc;
use std::time::Duration;

use queue_core::internal::error_chain;

use super::core::Core;
use crate::policy::jitter;

/// The pause between two sweeps, of which a random half is taken off at most, so that the processes of a fleet do not
/// sweep at the same time.
const INTERVAL: Duration = Duration::from_secs(20 * 60);
/// The pause between two sweeps if one did not remove everything.
const NEXT: Duration = Duration::from_secs(1);
/// The pause before the first sweep, so that programs that run for a short time sweep, too.
const FIRST: Duration = Duration::from_secs(10);

/// Sweeps the listener's store, if it has one, until the listener stops.
pub(super) fn start(core: &Arc<Core>) {
    if core.consumer.options.idempotency.is_none() {
        return;
    }
    core.keep_running("sweep", sweep);
}

async fn sweep(core: Arc<Core>) {
    let Some(idempotency) = &core.consumer.options.idempotency else {
        return;
    };
    let mut pause = FIRST;
    loop {
        let share = 0.5 + 0.5 * jitter();
        core.context.clock.sleep(pause.mul_f64(share)).await;
        pause = match idempotency.store.sweep().await {
            Ok(swept) if swept.more => NEXT,
            Ok(_) => INTERVAL,
            Err(error) => {
                let (queue, error) = (&core.consumer.queue, error_chain(&error));
                tracing::warn!(%queue, error, "failed to sweep the idempotency store; will retry");
                INTERVAL
            }
        };
    }
}
