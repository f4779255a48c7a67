//! The protocol: pure transitions, without I/O and without a clock, which `model` enumerates.
//!
//! Everything is decided by who creates an object first:
//!
//! | object | created by | means |
//! |---|---|---|
//! | `1`, `2`, … | one that begins | The object's creator holds this generation of the work. |
//! | `n.beat-k` | the holder of `n` | The holder was alive after beat `k−1`. |
//! | `n.end` | the holder of `n`, to finish or to give up; another owner, to take over | Generation `n` has ended: finished, given up or taken over. |
//!
//! The highest generation counts: if it has not ended, the work is in flight. Another owner's lease has ended once the
//! generation and its beats have been seen unchanged for the lease's length, on the observer's own clock.

use std::time::Duration;

use bytes::Bytes;
use queue_core::idempotency::{Claim, ClaimOutcome, ClaimStatus, Owner};

/// The highest generation that a listing shows, and how far it has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) generation: u64,
    /// The highest beat, or zero.
    pub(super) beat: u64,
    pub(super) ended: bool,
}

/// The object of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ClaimObject {
    pub(super) owner: Owner,
    pub(super) lease: Duration,
}

/// The object that ends a generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum EndObject {
    Done {
        owner: Owner,
        retention: Duration,
        result: Bytes,
    },
    /// The holder gave up, or another owner took over.
    Over,
}

/// A request to the object store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    List,
    ReadClaim(u64),
    ReadEnd(u64),
    Create(u64, ClaimObject),
    Beat(u64, u64),
    End(u64, EndObject),
}

/// The object store's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreAnswer {
    Listed(Option<Seen>),
    /// `None` if there is no such object.
    Claim(Option<ClaimObject>),
    End(Option<EndObject>),
    Created,
    /// Somebody has created the object before.
    Exists,
}

/// What follows an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextStep<T> {
    Ask(Ask),
    Finished(T),
}

/// Another owner's generation, watched on one's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Watch {
    seen: Seen,
    /// The owner of the generation, once known. After a sweep, another owner may have begun the same number anew.
    owner: Option<Owner>,
    /// When the generation was first read as `seen`.
    since: Duration,
}

/// When a request was sent and answered, on one's own monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Duration,
    pub(super) answered_at: Duration,
}

/// The number of listings after which `begin` gives up for now: others begin and end the same key all the time.
const MAX_ROUNDS: u32 = 16;
/// When to try a contended key again.
const CONTENDED: Duration = Duration::from_secs(1);

/// `begin`, as a sequence of requests, the first of which is [`Ask::List`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Begin {
    owner: Owner,
    lease: Duration,
    rounds: u32,
    /// How long the watched generation has been unchanged.
    unchanged_for: Duration,
}

impl Begin {
    pub(super) fn new(owner: Owner, lease: Duration) -> Self {
        Self {
            owner,
            lease,
            rounds: 1,
            unchanged_for: Duration::ZERO,
        }
    }

    /// Takes the answer to a request. `watch` is what the caller keeps of this key from call to call.
    pub(super) fn answer(
        &mut self,
        ask: &Ask,
        reply: StoreAnswer,
        asked: Asked,
        watch: &mut Option<Watch>,
    ) -> NextStep<ClaimOutcome> {
        match (ask, reply) {
            (Ask::List, StoreAnswer::Listed(seen)) => self.listed(seen, asked, watch),
            (Ask::ReadEnd(_), StoreAnswer::End(Some(EndObject::Done { result, .. }))) => {
                NextStep::Finished(ClaimOutcome::Done(result))
            }
            (Ask::ReadEnd(ended), StoreAnswer::End(Some(EndObject::Over))) => {
                self.create(ended + 1)
            }
            (&Ask::ReadClaim(generation), StoreAnswer::Claim(Some(claim))) => {
                if claim.owner == self.owner {
                    // An earlier request of ours was carried out.
                    return self.fresh(generation);
                }
                if let Some(watched) = watch
                    && watched.owner != Some(claim.owner)
                {
                    watched.owner = Some(claim.owner);
                    watched.since = asked.answered_at;
                    self.unchanged_for = Duration::ZERO;
                }
                match claim.lease.checked_sub(self.unchanged_for) {
                    Some(remaining) if !remaining.is_zero() => {
                        NextStep::Finished(ClaimOutcome::InFlight { remaining })
                    }
                    _ => NextStep::Ask(Ask::End(generation, EndObject::Over)),
                }
            }
            (Ask::End(taken, _), StoreAnswer::Created) => self.create(taken + 1),
            (Ask::Create(generation, _), StoreAnswer::Created) => self.fresh(*generation),
            // Another owner was first, or has removed what was listed.
            _ => self.list_again(),
        }
    }

    fn listed(
        &mut self,
        seen: Option<Seen>,
        asked: Asked,
        watch: &mut Option<Watch>,
    ) -> NextStep<ClaimOutcome> {
        let Some(seen) = seen else {
            *watch = None;
            return self.create(1);
        };
        if seen.ended {
            *watch = None;
            return NextStep::Ask(Ask::ReadEnd(seen.generation));
        }
        self.unchanged_for = match *watch {
            // The generation was unchanged from the first answer until this request at least.
            Some(watched) if watched.seen == seen => asked.at.saturating_sub(watched.since),
            _ => {
                *watch = Some(Watch {
                    seen,
                    owner: None,
                    since: asked.answered_at,
                });
                Duration::ZERO
            }
        };
        NextStep::Ask(Ask::ReadClaim(seen.generation))
    }

    fn create(&self, generation: u64) -> NextStep<ClaimOutcome> {
        let (owner, lease) = (self.owner, self.lease);
        NextStep::Ask(Ask::Create(generation, ClaimObject { owner, lease }))
    }

    fn fresh(&self, generation: u64) -> NextStep<ClaimOutcome> {
        NextStep::Finished(ClaimOutcome::Fresh(Claim::new(self.owner, generation)))
    }

    fn list_again(&mut self) -> NextStep<ClaimOutcome> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            let remaining = CONTENDED;
            return NextStep::Finished(ClaimOutcome::InFlight { remaining });
        }
        NextStep::Ask(Ask::List)
    }
}

/// Takes the answer to a request of `renew`, the first of which is [`Ask::List`].
pub(super) fn renewing(claim: Claim, reply: &StoreAnswer) -> NextStep<ClaimStatus> {
    match reply {
        StoreAnswer::Listed(Some(seen)) if seen.generation == claim.generation && !seen.ended => {
            NextStep::Ask(Ask::Beat(claim.generation, seen.beat + 1))
        }
        StoreAnswer::Listed(_) => NextStep::Finished(ClaimStatus::Lost),
        // Only the holder creates beats: one that exists is that of an earlier try.
        _ => NextStep::Finished(ClaimStatus::Held),
    }
}

/// Returns the first request of `finish`.
pub(super) fn finish(claim: Claim, result: Bytes, retention: Duration) -> Ask {
    let done = EndObject::Done {
        owner: claim.owner,
        retention,
        result,
    };
    Ask::End(claim.generation, done)
}

/// Takes the answer to a request of `finish`.
pub(super) fn finishing(claim: Claim, reply: &StoreAnswer) -> NextStep<ClaimStatus> {
    match reply {
        StoreAnswer::Created => NextStep::Finished(ClaimStatus::Held),
        StoreAnswer::Exists => NextStep::Ask(Ask::ReadEnd(claim.generation)),
        StoreAnswer::End(Some(EndObject::Done { owner, .. })) if *owner == claim.owner => {
            NextStep::Finished(ClaimStatus::Held)
        }
        _ => NextStep::Finished(ClaimStatus::Lost),
    }
}
