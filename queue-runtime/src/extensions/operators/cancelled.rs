//! What is recorded of cancels: of each message that was cancelled within the last 7 days, until when its copies are. A
//! copy that was put on its queue by then is not redriven, whenever it became poison: with several storages, one that is
//! being moved to the poison queue is seen nowhere by the cancel. A copy that was put on its queue later was submitted
//! again. The clocks of several storages are taken for one.

use bytes::Bytes;
use queue_core::backend::{Swap, SwapOutcome};
use queue_core::idempotency::WorkKey;
use queue_core::{MessageId, Operation, Result, Timestamp};

use super::tracking::{LOOKS, changes};
use crate::kernel::context::Context;
use crate::kernel::settings::DEFAULT_RETENTION;

/// What is recorded of the last cancel of a message.
struct LastCancel {
    value: Bytes,
    at: Timestamp,
}

/// Returns the storage's time until which a message was cancelled, if that is recorded.
pub(super) async fn at(context: &Context, id: &MessageId) -> Result<Option<Timestamp>> {
    let last = LastCancel::find(context, id).await?;
    Ok(last.map(|last| last.at))
}

/// Returns whether a copy of a message was cancelled that was put on its queue then.
pub(super) async fn is(context: &Context, id: &MessageId, put_at: Timestamp) -> Result<bool> {
    let cancelled_at = at(context, id).await?;
    Ok(cancelled_at.is_some_and(|cancelled_at| put_at <= cancelled_at))
}

/// Returns the swap that records that a message was cancelled at a time of the storage; `None` if a later cancel is
/// recorded. The swap is refused if another cancel is recorded meanwhile, or what is recorded cannot be read.
pub(crate) async fn next(context: &Context, id: &MessageId, at: Timestamp) -> Result<Option<Swap>> {
    let next = Swap::new(key(id), at.to_string(), DEFAULT_RETENTION);
    Ok(match LastCancel::find(context, id).await? {
        None => Some(next),
        Some(last) if last.at < at => Some(next.in_place_of(last.value)),
        Some(_) => None,
    })
}

/// Records that a message was cancelled at a time of the storage, if the storage records cancels.
pub(super) async fn record(context: &Context, id: &MessageId, at: Timestamp) -> Result<()> {
    let Some(store) = context.backend.results() else {
        return Ok(());
    };
    for _ in 0..LOOKS {
        let Some(next) = next(context, id, at).await? else {
            return Ok(());
        };
        if let SwapOutcome::Swapped = context.ask(|| store.swap(&next)).await? {
            return Ok(());
        }
    }
    Err(changes(Operation::Update))
}

impl LastCancel {
    async fn find(context: &Context, id: &MessageId) -> Result<Option<Self>> {
        let Some(store) = context.backend.results() else {
            return Ok(None);
        };
        let key = key(id);
        let found = context.ask(|| store.find(&key)).await?;
        Ok(found.map(|found| {
            let value = found.value.unwrap_or_default();
            // An earlier release has recorded no time.
            let at = String::from_utf8_lossy(&value).parse();
            let at = at.unwrap_or(Timestamp::MIN);
            Self { value, at }
        }))
    }
}

/// The key of the record that a message was cancelled.
fn key(id: &MessageId) -> WorkKey {
    WorkKey::new("cancelled", id.as_str())
}
