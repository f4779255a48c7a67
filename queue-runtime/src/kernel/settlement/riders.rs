//! What travels with the settlement of a message, in one step with it if the backend is atomic, and what the settlement
//! can do without.
//!
//! | rider | place | left behind if the storage |
//! |---|---|---|
//! | follow-up or reply of the handler, and what a required [`Rider`](super::Rider) returns | before the message | says that the queue of the reply is gone: nobody waits for it |
//! | copy for the poison queue | before the message | never |
//! | follow-up of `on_poison` | before the message | refuses it for good: left on its queue, the message would be received again and again |
//! | what another rider of the application returns | before the message | refuses it for good |
//! | notice that no reply comes | before the message | refuses it for good, or says that its queue is gone |
//! | record that the work of the message is done, if its claim is in the storage | after those | refuses it: it is then recorded where the claim is, before the message is settled without it, and is recorded there, too, if the message cannot be settled |
//! | release of the message's unique key | last, so that it is the message itself that is reported as gone | has another record of the key, or none that can be read; the copy for the poison queue then carries no key, because a redrive believes what it says |

use queue_core::backend::{NewMessage, Swap};
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, Outcome, QueueName, RetryAdvice};

use super::LOG;
use crate::kernel::context::Context;

/// A message that is put with a settlement, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RiderKind {
    FollowUp,
    PoisonCopy,
    OnPoison,
    /// What the application has travel with each settlement, unless it is required.
    Added,
    Notice,
}

/// What travels with one settlement.
#[derive(Debug, Default)]
pub(crate) struct Riders {
    puts: Vec<(QueueName, NewMessage)>,
    /// What each of the puts is for.
    kinds: Vec<RiderKind>,
    /// The record that the work of a claimed message is done.
    finish: Option<Box<Swap>>,
    release: Option<Box<Swap>>,
}

impl Riders {
    /// The follow-ups and replies of a handler.
    pub(crate) fn follow_ups(puts: Vec<(QueueName, NewMessage)>) -> Self {
        Self {
            kinds: vec![RiderKind::FollowUp; puts.len()],
            puts,
            finish: None,
            release: None,
        }
    }

    pub(crate) fn add(&mut self, kind: RiderKind, put: Option<(QueueName, NewMessage)>) {
        if let Some(put) = put {
            self.puts.push(put);
            self.kinds.push(kind);
        }
    }

    /// Adds the release of the message's unique key, if it holds one.
    pub(crate) fn add_release(&mut self, release: Option<Swap>) {
        if let Some(release) = release {
            self.release = Some(Box::new(release));
        }
    }

    pub(super) fn add_finish(&mut self, finish: Swap) {
        self.finish = Some(Box::new(finish));
    }

    pub(super) fn take_finish(&mut self) -> Option<Box<Swap>> {
        self.finish.take()
    }

    pub(super) fn finish(&self) -> Option<&Swap> {
        self.finish.as_deref()
    }

    /// The number of operations before the one on the message itself.
    pub(super) fn before_message(&self) -> usize {
        self.puts.len() + usize::from(self.finish.is_some())
    }

    pub(crate) fn puts(&self) -> &[(QueueName, NewMessage)] {
        &self.puts
    }

    pub(crate) fn release(&self) -> Option<&Swap> {
        self.release.as_deref()
    }

    /// Whether nothing is left that the settlement cannot do without, or that a repeated settlement does not take along by
    /// itself.
    pub(super) fn are_dispensable(&self) -> bool {
        let is_dispensable =
            |kind: &RiderKind| matches!(kind, RiderKind::Added | RiderKind::Notice);
        self.kinds.iter().all(is_dispensable)
    }

    /// Removes the first puts, which are known to be stored.
    pub(super) fn are_stored(&mut self, puts: usize) {
        self.puts.drain(..puts);
        self.kinds.drain(..puts);
    }

    /// Leaves behind a reply that nobody waits for, and the release of a key that the message does not hold, if that is what
    /// has failed: the operation at `at`, among the puts, the settlement and the release. Returns whether anything is left
    /// behind, so that the settlement is worth another try.
    pub(super) fn leave_behind(
        &mut self,
        at: usize,
        error: &Error,
        message: (&QueueName, &str),
        context: &Context,
    ) -> bool {
        if at > self.before_message() {
            let is_of_key = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Corrupt);
            return is_of_key && self.forget_key(context);
        }
        self.leave_behind_replies(error, message)
    }

    /// Leaves behind the replies to an instance that is gone with its reply queue. Returns whether there were any.
    pub(crate) fn leave_behind_replies(
        &mut self,
        error: &Error,
        (queue, id): (&QueueName, &str),
    ) -> bool {
        let gone = error.queue().filter(|_| error.is_queue_gone());
        let Some(gone) = gone.filter(|queue| queue.is_reply_queue()) else {
            return false;
        };
        let before = self.puts.len();
        self.retain(|to| to != gone);
        let left_behind = self.puts.len() < before;
        if left_behind {
            tracing::debug!(target: LOG, %queue, id, reply_queue = %gone, "the reply to a message is not sent: the sender does not wait any more");
        }
        left_behind
    }

    /// Leaves behind a put that the settlement can do without, if the storage has refused it for good: the one at `at`, or
    /// the last one if the error names no queue. Returns whether one is left behind.
    pub(crate) fn leave_behind_refused(
        &mut self,
        at: usize,
        error: &Error,
        (queue, id): (&QueueName, &str),
    ) -> bool {
        if !is_refused_for_good(error) {
            return false;
        }
        let is_dispensable = |kind: &RiderKind| {
            matches!(
                kind,
                RiderKind::OnPoison | RiderKind::Added | RiderKind::Notice
            )
        };
        let last = || self.kinds.iter().rposition(is_dispensable);
        let at = match error.queue() {
            Some(_) => Some(at).filter(|at| self.kinds.get(*at).is_some_and(is_dispensable)),
            None => last(),
        };
        let Some(at) = at else {
            return false;
        };
        self.puts.remove(at);
        let error = error_chain(error);
        match self.kinds.remove(at) {
            RiderKind::Notice => {
                tracing::warn!(target: LOG, %queue, id, error, "failed to tell the sender of a request that no reply comes");
            }
            kind => {
                tracing::error!(target: LOG, %queue, id, error, ?kind, "a message ends without what it was to take along");
            }
        }
        true
    }

    /// Returns where the put is that an error names by its queue alone.
    pub(crate) fn refused(&self, error: &Error) -> Option<usize> {
        let refused = error.queue()?;
        self.puts.iter().position(|(queue, _)| queue == refused)
    }

    fn retain(&mut self, keeps: impl Fn(&QueueName) -> bool) {
        let mut kinds = std::mem::take(&mut self.kinds).into_iter();
        self.puts.retain(|(queue, _)| {
            let (kept, kind) = (keeps(queue), kinds.next());
            self.kinds.extend(kind.filter(|_| kept));
            kept
        });
    }

    fn forget_key(&mut self, context: &Context) -> bool {
        for (_, put) in self.puts.iter_mut().filter(|(_, put)| put.moved) {
            put.body = context.encoder.without_unique_key(&put.body);
        }
        self.release.take().is_some()
    }
}

/// Whether the backend refuses a message that is put for good. A storage that fails or is damaged does not refuse one.
pub(super) fn is_refused_for_good(error: &Error) -> bool {
    error.retry() == RetryAdvice::Permanent
        && error.outcome() == Outcome::NotDone
        && !error.is_lease_gone()
        && !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Storage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::settlement::end::SettleErrorKind;
    use crate::kernel::settlement::write::Unsettled;

    #[test]
    fn what_is_left_is_what_it_was_for() {
        let put = |name: &str| (name.parse().expect("a name"), NewMessage::new("body"));
        let mut riders = Riders::follow_ups(vec![put("first"), put("second")]);
        riders.add(RiderKind::OnPoison, None);
        riders.add(RiderKind::Notice, Some(put("third")));
        riders.are_stored(1);
        assert!(!riders.are_dispensable());
        riders.retain(|queue| queue.as_str() != "second");
        assert_eq!(riders.kinds[..], [RiderKind::Notice]);
        assert!(riders.are_dispensable() && riders.puts().len() == 1);
    }

    #[test]
    fn what_is_refused_for_good_is_left_behind_if_the_settlement_can_do_without() {
        let put = |name: &str| (name.parse().expect("a name"), NewMessage::new("body"));
        let riders = || {
            let mut riders = Riders::default();
            riders.add(RiderKind::PoisonCopy, Some(put("poison")));
            riders.add(RiderKind::OnPoison, Some(put("alerts")));
            riders.add(RiderKind::Notice, Some(put("notices")));
            riders
        };
        let message = &put("orders").0;
        let error = |kind| Error::new(kind, queue_core::Operation::Apply);
        let of = |name: &str| error(ErrorKind::Denied).with_queue(&put(name).0);
        for (at, error, left) in [
            (0, of("poison"), None),
            (
                1,
                of("alerts"),
                Some([RiderKind::PoisonCopy, RiderKind::Notice]),
            ),
            (
                2,
                of("notices"),
                Some([RiderKind::PoisonCopy, RiderKind::OnPoison]),
            ),
            (3, of("orders"), None),
            // Of any of them, or of all.
            (
                0,
                error(ErrorKind::Denied),
                Some([RiderKind::PoisonCopy, RiderKind::OnPoison]),
            ),
            (1, error(ErrorKind::Corrupt), None),
            (1, error(ErrorKind::Throttled), None),
            (
                1,
                error(ErrorKind::Denied).with_outcome(Outcome::Unknown),
                None,
            ),
        ] {
            let mut riders = riders();
            let is_left = riders.leave_behind_refused(at, &error, (message, "id"));
            assert_eq!(is_left, left.is_some(), "{at}: {error}");
            if let Some(left) = left {
                assert_eq!(riders.kinds[..], left, "{at}: {error}");
            }
        }
    }

    #[test]
    fn a_notice_that_is_left_is_no_follow_up_that_was_refused() {
        let put = |name: &str| (name.parse().expect("a name"), NewMessage::new("body"));
        let denied = Error::new(ErrorKind::Denied, queue_core::Operation::Apply);
        for (kind, is_refused) in [(RiderKind::Notice, false), (RiderKind::FollowUp, true)] {
            let mut riders = Riders::default();
            riders.add(kind, Some(put("queue")));
            let kind = SettleErrorKind::NotDone(denied.clone());
            let unsettled = Unsettled { kind, riders };
            assert_eq!(unsettled.refused_put().is_some(), is_refused);
        }
    }
}
