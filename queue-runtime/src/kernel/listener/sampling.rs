//! Reading the depths of a listener's queue and of its poison queue for metrics.
//!
//! One listener of a service does so for each queue. When it stops, another one of the queue takes over.

use std::collections::BTreeSet;
use std::sync::Arc;

use queue_core::internal::error_chain;
use queue_core::{ErrorKind, QueueName};

use super::core::Core;
use crate::kernel::policy::{jitter, spread};
use crate::kernel::settings::read_in_time;

/// Reads the depths from time to time until the listener stops, if the service does that and the application has
/// installed a recorder of metrics. Then they are not known any more.
pub(super) fn start(core: &Arc<Core>) {
    if core.context.depth_interval.is_none() || !core.measures.is_recorded() {
        return;
    }
    core.keep_running("depths", sample);
}

async fn sample(core: Arc<Core>) {
    let Some(interval) = core.context.depth_interval else {
        return;
    };
    let consumers = core.handling.routes.consumers().chain([&core.consumer]);
    let poison_queues: BTreeSet<_> = consumers.map(|consumer| consumer.poison_queue()).collect();
    let mut claim = None;
    // The first time soon, and not of all listeners at once.
    let mut pause = interval.mul_f64(jitter() / 10.0);
    loop {
        core.context.clock.sleep(pause).await;
        pause = spread(interval, jitter());
        claim = claim.or_else(|| core.measures.claim_sampling());
        if claim.is_none() {
            continue;
        }
        let depth = read(&core, &core.consumer.queue).await.ok();
        depth.inspect(|depth| core.counters.measured(*depth));
        core.measures.depth(depth);
        let mut poison_depth = Some(0);
        for poison_queue in &poison_queues {
            let depth = match read(&core, poison_queue).await {
                // It is created with its first message.
                Err(ErrorKind::QueueNotFound) => Some(0),
                depth => depth.ok(),
            };
            poison_depth = poison_depth.zip(depth).map(|(sum, depth)| sum + depth);
        }
        core.measures.poison_depth(poison_depth);
    }
}

async fn read(core: &Core, queue: &QueueName) -> Result<u64, ErrorKind> {
    let properties = core.context.backend.properties(queue);
    match read_in_time(&*core.context.clock, queue, properties).await {
        Ok(properties) => Ok(properties.approximate_count),
        Err(error) => {
            if error.kind() != ErrorKind::QueueNotFound {
                let error = error_chain(&error);
                tracing::debug!(%queue, error, "failed to read the depth of a queue for metrics");
            }
            Err(error.kind())
        }
    }
}
