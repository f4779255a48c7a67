//! Sweeping the idempotency stores of a listener.

use std::sync::Arc;
use std::time::Duration;

use queue_core::idempotency::IdempotencyStore;
use queue_core::internal::error_chain;

use super::core::Core;
use crate::kernel::policy::jitter;
use crate::kernel::receive::Idempotency;

/// The pause between two sweeps, of which a random half is taken off at most, so that the processes of a fleet do not
/// sweep at the same time.
const INTERVAL: Duration = Duration::from_secs(20 * 60);
/// The pause between two sweeps if one did not remove everything.
const NEXT: Duration = Duration::from_secs(1);
/// The pause before the first sweep, so that programs that run for a short time sweep, too.
const FIRST: Duration = Duration::from_secs(10);

/// Sweeps each store of the listener until the listener stops.
pub(super) fn start(core: &Arc<Core>) {
    let mut stores: Vec<Arc<dyn IdempotencyStore>> = Vec::new();
    for consumer in core.handling.routes.consumers() {
        if let Some(Idempotency { store, .. }) = &consumer.options.idempotency
            && !stores.iter().any(|other| Arc::ptr_eq(other, store))
        {
            stores.push(Arc::clone(store));
        }
    }
    for store in stores {
        core.keep_running("sweep", move |core| sweep(core, Arc::clone(&store)));
    }
}

async fn sweep(core: Arc<Core>, store: Arc<dyn IdempotencyStore>) {
    let mut pause = FIRST;
    loop {
        let share = 0.5 + 0.5 * jitter();
        core.context.clock.sleep(pause.mul_f64(share)).await;
        pause = match store.sweep().await {
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
