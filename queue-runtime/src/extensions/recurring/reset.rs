use bytes::Bytes;
use queue_core::backend::{ConditionalPuts, PutIf};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

use super::record::Last;
use crate::kernel::context::Context;

/// The queue that a put without a message names. It need not exist.
const NO_QUEUE: QueueName = QueueName::from_static("schedules");

/// Records that a schedule begins now, in place of what is recorded of it. Returns false if nothing is.
pub(crate) async fn reset(context: &Context, schedule: &str) -> Result<bool> {
    if context.backend.capabilities().conditional_puts == ConditionalPuts::Unsupported {
        let unsupported = Error::new(ErrorKind::Unsupported, Operation::Idempotency);
        let detail = "this storage cannot record ticks; to reset a schedule that uses `recorded_in`, restart its processes";
        return Err(unsupported.with_detail(detail).unsent());
    }
    // No record is empty, so that the first swap only reads.
    let mut recorded = Bytes::new();
    loop {
        let begins = Last::new(context.clock.now());
        let swap = begins.swap(schedule).in_place_of(recorded.clone());
        match context.backend.put_if(&NO_QUEUE, None, &swap).await? {
            PutIf::Swapped(_) => {
                tracing::info!(schedule, "reset a schedule");
                return Ok(true);
            }
            PutIf::Differs(None) => return Ok(false),
            // The answer to an earlier try may have been lost; or a process has just submitted a tick.
            PutIf::Differs(Some(current)) => recorded = current,
        }
    }
}
