//! The swaps of the backend with a planted bug.

use std::time::Duration;

use queue_core::backend::{
    ApplyError, Backend as _, NewMessage, Op, OpOutcomes, Ops, Record, Swap, SwapIf,
};
use queue_core::idempotency::Owner;
use queue_core::{ErrorKind, QueueName};

use super::bug::Bug;
use super::buggy_backend::Buggy;

impl Buggy {
    /// Carries out a conditional put, or changes a record.
    pub(super) async fn swap(
        &self,
        queue: &QueueName,
        message: Option<NewMessage>,
        mut swap: Swap,
    ) -> Result<OpOutcomes, ApplyError> {
        let at = usize::from(message.is_some());
        let put = message.map(|message| Op::Put {
            queue: queue.clone(),
            message,
        });
        let alone = async |swap| {
            self.with(None, queue, swap).await.map_err(|mut failed| {
                failed.index = at;
                failed
            })
        };
        match self.bug {
            Bug::PutsWithoutSwap => {
                let swapped = alone(swap).await;
                let mut outcomes = self.inner.apply(put.into_iter().collect()).await?;
                outcomes.extend(swapped?);
                return Ok(outcomes);
            }
            Bug::SwapsAnything => {
                let expected = Swap::forget(swap.key.clone()).in_place_of("none has this");
                let found = alone(expected).await.err();
                if let Some(found) = found.as_ref().and_then(ApplyError::found) {
                    swap.condition = SwapIf::Value(found.value.clone().unwrap_or_default());
                }
            }
            Bug::SwapsWithoutPut => return alone(swap).await,
            Bug::SwapsBeforeRefusal => {
                let swapped = alone(swap).await?;
                let mut outcomes = self.inner.apply(put.into_iter().collect()).await?;
                outcomes.extend(swapped);
                return Ok(outcomes);
            }
            Bug::ForgetsRetention => {
                if let Some(record) = &mut swap.record {
                    record.duration *= 2;
                }
            }
            Bug::ForgetsNothing if swap.record.is_none() => {
                let minute = Duration::from_secs(60);
                swap.record = Some(Record::value(Owner::random(), "kept", minute));
            }
            Bug::SwapsOnlyOnce => swap.condition = SwapIf::Absent,
            Bug::OutlivesItsMessage => {
                if let Some(record) = &mut swap.record {
                    record.ends_with_message = false;
                }
            }
            Bug::NeedsQueueToSwap => {
                let known = self.inner.metadata(queue).await;
                known.map_err(|error| ApplyError::nothing_done(0, error))?;
            }
            Bug::TakesEndedClaimsForNone if swap.condition == SwapIf::Absent => {
                swap.condition = SwapIf::AbsentOrEnded;
            }
            Bug::EndsClaimsWithTheirLease if matches!(swap.condition, SwapIf::Owner(_)) => {
                let ended = Swap::begin(swap.key.clone(), Owner::random(), Duration::ZERO);
                drop(alone(ended).await);
            }
            Bug::TellsNoOwner => {
                let swapped = self.with(put, queue, swap).await;
                return swapped.map_err(|failed| match failed.error.kind() {
                    ErrorKind::Conflict => failed.with_found(None),
                    _ => failed,
                });
            }
            _ => {}
        }
        self.with(put, queue, swap).await
    }

    async fn with(
        &self,
        put: Option<Op>,
        queue: &QueueName,
        swap: Swap,
    ) -> Result<OpOutcomes, ApplyError> {
        let queue = queue.clone();
        let ops: Ops = put.into_iter().chain([Op::Swap { queue, swap }]).collect();
        self.inner.apply(ops).await
    }
}
