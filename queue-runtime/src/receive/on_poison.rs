use std::fmt;
use std::sync::Arc;

use queue_core::envelope::{Envelope, PoisonRecord};
use queue_core::wire::Body;
use queue_core::{FollowUp, Message};

/// A message that is being moved to the poison queue, as `on_poison` sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Poisoned<M> {
    /// The message, unless its body could not be decoded.
    pub message: Option<M>,
    /// The envelope. For a body that is not an event (`record.raw`) it is made from what the storage
    /// service reports.
    pub envelope: Arc<Envelope>,
    /// The reason, the error and the number of attempts.
    pub record: PoisonRecord,
}

/// An `on_poison` callback with its message type erased.
#[derive(Clone)]
pub(crate) struct OnPoison(Arc<Callback>);

type Callback = dyn Fn(&Body, Arc<Envelope>, PoisonRecord) -> Option<FollowUp> + Send + Sync;

impl OnPoison {
    pub(crate) fn new<M: Message>(
        callback: impl Fn(Poisoned<M>) -> Option<FollowUp> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |body, envelope, record| {
            callback(Poisoned {
                message: body.decode::<M>().ok(),
                envelope,
                record,
            })
        }))
    }

    pub(crate) fn call(
        &self,
        body: &Body,
        envelope: Arc<Envelope>,
        record: PoisonRecord,
    ) -> Option<FollowUp> {
        (self.0)(body, envelope, record)
    }
}

impl fmt::Debug for OnPoison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnPoison(…)")
    }
}
