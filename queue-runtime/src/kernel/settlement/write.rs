//! The last operation on a received message, which is retried while that is safe and the lease may last. An unknown
//! outcome is reported as such.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Atomicity, NewMessage, Op, Ops, PopReceipt, PutBackPlace, Swap};
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName};

use super::end::SettleErrorKind;
use super::riders::{Riders, is_refused_for_good};
use crate::kernel::clock::ready_by;
use crate::kernel::context::Context;
use crate::kernel::lease::{Earlier, Gone, Intent, LastOp, Lease, Locked, Proof, Purpose};
use crate::kernel::notify::Announced;
use crate::kernel::receive::Incoming;
use crate::kernel::repeat::Repeats;
use crate::kernel::send;

/// The operation on the received message itself.
#[derive(Debug, Clone)]
pub(super) enum MessageChange {
    /// `moved` if another message takes the deleted message's place.
    Delete { moved: bool },
    PutBack {
        place: PutBackPlace,
        body: Option<Bytes>,
    },
}

/// The failure of a settlement.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) kind: SettleErrorKind,
    /// What is not known to be stored.
    pub(super) riders: Riders,
}

impl Unsettled {
    /// Returns the error if the backend refuses one of the messages to put for good, or may do so.
    pub(super) fn refused_put(&self) -> Option<&Error> {
        match &self.kind {
            SettleErrorKind::NotDone(error)
                if is_refused_for_good(error) && !self.riders.are_dispensable() =>
            {
                Some(error)
            }
            _ => None,
        }
    }
}

impl Unsettled {
    /// Whether the storage may have refused what was written because of the record that the work of the message is done: for
    /// its condition, as of a settlement that was carried out and not answered, or for its size.
    pub(super) fn may_be_of_record(&self) -> bool {
        // The only other condition, that of the unique key, is left behind with its release.
        let is_too_large =
            |error: &Error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::TooLarge);
        matches!(&self.kind, SettleErrorKind::NotDone(error) if is_other_record(error) || is_too_large(error))
    }
}

fn is_other_record(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Corrupt)
}

impl From<Unsettled> for SettleErrorKind {
    fn from(unsettled: Unsettled) -> Self {
        unsettled.kind
    }
}

/// The minimum time for which a settlement is retried, even if the lease ends before: the receipt stays
/// valid until another consumer receives the message.
pub(super) const MIN_PATIENCE: Duration = Duration::from_secs(2);

/// Settles a received message after its riders: in one step if the backend is atomic, otherwise in this order.
pub(super) async fn write(
    context: &Context,
    incoming: &Incoming,
    purpose: Purpose,
    mut riders: Riders,
    change: MessageChange,
) -> Result<(), Unsettled> {
    if let MessageChange::Delete { .. } = change {
        riders.add_release(send::release(context, &incoming.envelope));
    }
    let settled = repeat(context, incoming, purpose, &mut riders, &change).await;
    settled.map_err(|kind| Unsettled { kind, riders })
}

/// Returns why the lease was lost: the message has expired, or another consumer may have received it.
pub(crate) fn lost(context: &Context, incoming: &Incoming, error: Error) -> SettleErrorKind {
    if incoming.is_expired(context) {
        SettleErrorKind::Expired(error)
    } else {
        SettleErrorKind::LeaseLost(error)
    }
}

/// Returns a hash that tells what one settlement writes from what another does.
pub(crate) fn fingerprint(written: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    written.hash(&mut hasher);
    hasher.finish()
}

/// Repeats the settlement until it is answered or given up. Removes from the riders what is known to be stored.
async fn repeat(
    context: &Context,
    incoming: &Incoming,
    purpose: Purpose,
    riders: &mut Riders,
    change: &MessageChange,
) -> Result<(), SettleErrorKind> {
    let (clock, lease) = (&*context.clock, &incoming.lease);
    let intent = Intent {
        purpose,
        puts: riders.puts().len(),
    };
    let mut locked = lease.lock().await;
    let at_least = clock.monotonic().saturating_add(MIN_PATIENCE);
    let mut give_up_at = locked.certain_end().max(at_least);
    let mut repeats = Repeats::within_lease(give_up_at, clock).creating(&context.creations);
    loop {
        let receipt = match locked.receipt() {
            Ok(receipt) => receipt,
            Err(error) if locked.before(&intent) == Earlier::Nothing => {
                return Err(lost(context, incoming, error));
            }
            Err(error) => return Err(SettleErrorKind::Unknown(error)),
        };
        let asked = Asked::of(&mut locked, &intent);
        let attempt = attempt(context, lease, receipt, riders, change);
        let attempt = ready_by(clock, give_up_at, attempt).await;
        let attempt = attempt.unwrap_or_else(|| Err(Interrupted::at_settlement(no_answer(lease))));
        asked.answered();
        let Err(Interrupted {
            done,
            at,
            at_settlement,
            error,
        }) = attempt
        else {
            locked.settled();
            announce(context, lease, riders.puts(), Some(change));
            return Ok(());
        };
        announce(context, lease, &riders.puts()[..done], None);
        riders.are_stored(done);
        if error.outcome() == Outcome::Unknown {
            let tried = at_settlement.then_some(change);
            announce(context, lease, riders.puts(), tried);
            if at_settlement {
                locked.settlement_unanswered(&intent);
            }
        }
        let message = (lease.queue(), incoming.envelope.id.as_str());
        if riders.leave_behind(at - done, &error, message, context) {
            continue;
        }
        if riders.finish().is_some() && is_other_record(&error) {
            return Err(SettleErrorKind::NotDone(error));
        }
        if let Some(answer) = Gone::of(&error) {
            let request = request(context, change, riders);
            return match locked.settlement_gone(request, answer, &intent) {
                Proof::CarriedOut => Ok(()),
                Proof::LeaseLost => Err(SettleErrorKind::LeaseLost(error)),
                // The expiry is known to within the margin only.
                Proof::Expired => Err(lost(context, incoming, error)),
                Proof::NotCarriedOut => Err(SettleErrorKind::NotDone(error)),
                Proof::Nothing => Err(SettleErrorKind::Unknown(error)),
            };
        }
        if is_own_queue_missing(lease, &error) {
            return match locked.before(&intent) {
                Earlier::Nothing => {
                    locked.lose();
                    Err(SettleErrorKind::LeaseLost(error))
                }
                Earlier::Same | Earlier::Other => Err(SettleErrorKind::Unknown(error)),
            };
        }
        // Boxed, because this future is rare and large.
        let again = Box::pin(repeats.pause(error));
        let again = ready_by(clock, give_up_at, again).await;
        let again = again.unwrap_or_else(|| Err(no_answer(lease)));
        match (again, locked.before(&intent)) {
            (Ok(()), _) => {}
            (Err(error), Earlier::Nothing) => {
                if !riders.leave_behind_refused(at - done, &error, message) {
                    return Err(SettleErrorKind::NotDone(error));
                }
                give_up_at = give_up_at.max(clock.monotonic().saturating_add(MIN_PATIENCE));
                repeats = Repeats::within_lease(give_up_at, clock).creating(&context.creations);
            }
            (Err(error), Earlier::Same | Earlier::Other) => {
                return Err(SettleErrorKind::Unknown(error));
            }
        }
    }
}

/// Announces the messages that were put, the settled one if it was put back, and the next one of its group: all are, or may
/// be, stored.
fn announce(
    context: &Context,
    lease: &Lease,
    puts: &[(QueueName, NewMessage)],
    change: Option<&MessageChange>,
) {
    let puts = Announced::of_puts(puts);
    let put_back = match change {
        Some(MessageChange::PutBack { place, .. }) => {
            Some(Announced::put_back(lease.queue(), place.delay()))
        }
        Some(MessageChange::Delete { .. }) | None => None,
    };
    let is_passed_on = change.is_some() && lease.has_group();
    let next = is_passed_on.then(|| Announced::put_back(lease.queue(), Duration::ZERO));
    context.notifiers.publish(puts.chain(put_back).chain(next));
}

/// A settlement that the backend was asked for, recorded as unanswered if dropped before the answer.
struct Asked<'a, 'l> {
    locked: &'a mut Locked<'l>,
    intent: &'a Intent,
    answered: bool,
}

impl<'a, 'l> Asked<'a, 'l> {
    fn of(locked: &'a mut Locked<'l>, intent: &'a Intent) -> Self {
        Self {
            locked,
            intent,
            answered: false,
        }
    }

    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Asked<'_, '_> {
    fn drop(&mut self) {
        if !self.answered {
            self.locked.settlement_unanswered(self.intent);
        }
    }
}

/// A failed try to settle.
struct Interrupted {
    /// The number of puts that were carried out.
    done: usize,
    /// The index of the operation that failed, not below `done`.
    at: usize,
    /// Whether the operation on the message itself was tried, so that it may have been carried out.
    at_settlement: bool,
    error: Error,
}

impl Interrupted {
    fn at_settlement(error: Error) -> Self {
        Self {
            done: 0,
            at: 0,
            at_settlement: true,
            error,
        }
    }
}

async fn attempt(
    context: &Context,
    lease: &Lease,
    receipt: PopReceipt,
    riders: &Riders,
    change: &MessageChange,
) -> Result<(), Interrupted> {
    let settled_at = riders.before_message();
    let ops = operations(lease, receipt, riders, change);
    match context.backend.apply(ops).await {
        Ok(_) => Ok(()),
        // The message is settled, and only its key is still held.
        Err(failed) if failed.completed.len() > settled_at => Ok(()),
        Err(failed) => Err(Interrupted {
            done: failed.completed.len(),
            // What says nothing of any operation does not say which has failed.
            at: if failed.is_unreadable() {
                failed.completed.len()
            } else {
                failed.index
            },
            at_settlement: is_atomic(context)
                || failed.index >= settled_at
                || failed.is_unreadable(),
            error: failed.error,
        }),
    }
}

/// Returns the puts, the record of the work, the settlement itself, and the release of the key.
fn operations(lease: &Lease, receipt: PopReceipt, riders: &Riders, change: &MessageChange) -> Ops {
    let (puts, release) = (riders.puts(), riders.release());
    let (queue, id) = (lease.queue().clone(), lease.id().clone());
    let settlement = match change {
        MessageChange::PutBack { place, body } => Op::PutBack {
            queue,
            id,
            receipt,
            place: *place,
            body: body.clone(),
        },
        MessageChange::Delete { moved } => Op::Delete {
            queue,
            id,
            receipt,
            moved: *moved,
        },
    };
    if riders.before_message() == 0 && release.is_none() {
        return Ops::from([settlement]);
    }
    let puts = puts.iter().map(|(queue, message)| Op::Put {
        queue: queue.clone(),
        message: message.clone(),
    });
    let swap = |swap: &Swap| Op::Swap {
        queue: lease.queue().clone(),
        swap: swap.clone(),
    };
    let (finish, release) = (riders.finish().map(swap), release.map(swap));
    puts.chain(finish)
        .chain([settlement])
        .chain(release)
        .collect()
}

/// Returns what the backend is asked for, once the puts that are known to be stored are left out.
fn request(context: &Context, change: &MessageChange, riders: &Riders) -> LastOp {
    match change {
        MessageChange::PutBack { .. } => LastOp::PutBack,
        MessageChange::Delete { .. } if is_atomic(context) && riders.before_message() > 0 => {
            LastOp::DeleteWithPuts
        }
        MessageChange::Delete { .. } => LastOp::Delete,
    }
}

fn is_atomic(context: &Context) -> bool {
    context.backend.capabilities().atomicity == Atomicity::Atomic
}

/// Returns whether the message is gone because its queue is. A missing queue of a put can be created.
fn is_own_queue_missing(lease: &Lease, error: &Error) -> bool {
    let own = |queue: &QueueName| queue == lease.queue();
    error.kind() == ErrorKind::QueueNotFound && error.queue().is_none_or(own)
}

pub(super) fn no_answer(lease: &Lease) -> Error {
    Error::new(ErrorKind::Timeout, Operation::Update)
        .with_queue(lease.queue())
        .with_outcome(Outcome::Unknown)
}
