use bytes::Bytes;
use queue_core::Error;
use queue_core::idempotency::WorkKey;

use crate::kernel::send::submitted_again;
use crate::kernel::settlement::{End, Recorded, SettleProblem, Settled, Settling, fingerprint};

/// Why a message is not handled now. What decides that may be dropped while it waits; settling the message is a step of
/// its own.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It ends like this.
    Ends(End),
    /// It is a copy of a message that is done.
    Copy,
    /// The work of its key was done before, with this recorded result.
    DoneBefore { key: WorkKey, result: Bytes },
    /// It was settled, or that was tried.
    Settled(Result<Settled, SettleProblem>),
    /// The idempotency store failed. The message was handed back to the caller of `accept`, who can decide what to do.
    NoClaim(Error),
    /// The same, if its data could not be fetched.
    NoData(Error),
}

impl Refusal {
    /// Settles the message, unless that was done.
    pub(crate) async fn settle(self, settling: Settling<'_>) -> Result<Settled, SettleProblem> {
        match self {
            Self::Ends(end) => settling.end(end).await,
            Self::Copy => settling.end(End::Completed).await.map(duplicate),
            Self::DoneBefore { key, result } => complete_again(settling, &key, &result).await,
            Self::Settled(settled) => settled,
            Self::NoClaim(error) | Self::NoData(error) => Err(SettleProblem::NotDone(error)),
        }
    }
}

impl From<SettleProblem> for Refusal {
    fn from(problem: SettleProblem) -> Self {
        Self::Settled(Err(problem))
    }
}

/// Completes a message whose work was done before: stores the recorded follow-ups again, with the same ids. If the work
/// was done for another message, a recorded reply goes to the sender of this one.
async fn complete_again(
    settling: Settling<'_>,
    key: &WorkKey,
    result: &[u8],
) -> Result<Settled, SettleProblem> {
    let Settling {
        context,
        consumer,
        incoming,
    } = settling;
    let puts = match Recorded::decode(result) {
        Ok(puts) => puts,
        Err(problem) => {
            let error = format!("the recorded result of `{key}` cannot be read: {problem}");
            return settling.end(End::failed(error)).await;
        }
    };
    let puts = puts.into_iter();
    let puts: Vec<_> = puts
        .filter_map(|put| submitted_again(context, &incoming.envelope, put))
        .collect();
    let (queue, id) = (&consumer.queue, &incoming.envelope.id);
    let follow_ups = puts.len();
    tracing::info!(%queue, %id, %key, follow_ups, "the work of a message was done before; completing it");
    let hash = fingerprint(result);
    // Boxed, because it is rare and its state is large.
    let completed = Box::pin(settling.complete_again(puts, hash)).await;
    completed.map(duplicate)
}

fn duplicate(settled: Settled) -> Settled {
    match settled {
        Settled::Completed => Settled::Duplicate,
        other => other,
    }
}
