//! Receives: the first visible messages are leased.

use queue_core::backend::ItemSet;
use rusqlite::params;

use super::Messages;
use crate::failure::{Failure, Result};
use crate::rows::stored::{Placed, Stored, may_be_tracked, may_have_group};

/// The number of expired messages that one claim removes before it gives up.
const MAX_EXPIRED: usize = 4096;

impl Messages<'_> {
    /// Leases the first visible messages, each until the next time of `leases`. Returns as many as requested, or all
    /// visible ones; `None` if the first [`MAX_EXPIRED`] have all expired, so that no other is known yet.
    pub(crate) fn claim(
        &mut self,
        queue: i64,
        leases: &mut dyn Iterator<Item = i64>,
        max: usize,
        now: i64,
    ) -> Result<Option<Vec<Stored>>> {
        let mut claimed = self.claim_without_fences(queue, leases, max, now)?;
        let of_groups = claimed.iter_mut().flatten();
        let of_groups: Vec<_> = of_groups.filter_map(|one| one.fence.as_mut()).collect();
        if !of_groups.is_empty() {
            let many = of_groups.len() as i64;
            let first = self.groups.last_fence(many, now)? - many + 1;
            for (fence, number) in of_groups.into_iter().zip(first..) {
                *fence = number.unsigned_abs();
            }
        }
        Ok(claimed)
    }

    fn claim_without_fences(
        &mut self,
        queue: i64,
        leases: &mut dyn Iterator<Item = i64>,
        max: usize,
        now: i64,
    ) -> Result<Option<Vec<Stored>>> {
        let mut claimed = Vec::new();
        let mut expired = 0;
        loop {
            let wanted = max - claimed.len();
            let found = self.first_visible(queue, now, wanted)?;
            let mut all = found.len() < wanted && (self.probe.is_none() || found.is_empty());
            self.unschedule_all(queue, &found)?;
            for mut message in found {
                if message.placed.expires_at.is_some_and(|at| at <= now) {
                    self.counts.removed(queue);
                    let Placed { seq, salt, .. } = message.placed;
                    self.leave_group(seq, salt, now)?;
                    self.remove_body(seq)?;
                    expired += 1;
                    // The next one of its group is visible now.
                    all &= !may_have_group(message.placed.salt);
                } else {
                    let until = leases.next().expect("a lease for each of `max` messages");
                    let Placed {
                        seq,
                        salt,
                        expires_at,
                        ..
                    } = message.placed;
                    let grouped = self.grouped(seq, salt)?;
                    // The numbers are given to all at once.
                    message.fence = grouped.map(|_| 0);
                    let until = match expires_at {
                        Some(expires_at) if grouped.is_some() => until.min(expires_at),
                        _ => until,
                    };
                    self.lease(queue, &mut message, until, now)?;
                    if grouped.is_some_and(|grouped| grouped.turn.is_some()) {
                        self.groups.receive(seq, now)?;
                        all = false;
                    }
                    // Messages not received before have no deleted items.
                    if message.dequeue_count > 1 {
                        message.deleted_items = self.deleted_items(&message)?;
                    }
                    claimed.push(message);
                }
            }
            if all || claimed.len() == max {
                return Ok(Some(claimed));
            }
            // The probe does not see what this transaction has changed.
            if expired >= MAX_EXPIRED || self.probe.is_some() {
                return Ok((!claimed.is_empty()).then_some(claimed));
            }
        }
    }

    /// Returns the deleted items of a message; around damage, none: what cannot be read is handled again.
    fn deleted_items(&mut self, message: &Stored) -> Result<ItemSet> {
        let Placed { seq, salt, .. } = message.placed;
        match self.items.deleted(seq, salt) {
            Err(failure) if failure.is_damage() && self.probe.is_some() => Ok(ItemSet::default()),
            deleted => deleted,
        }
    }

    fn first_visible(&mut self, queue: i64, now: i64, max: usize) -> Result<Vec<Stored>> {
        if let Some(probe) = &self.probe {
            return probe.first_visible(queue, now, max);
        }
        let mut rows = self.first_visible.query(params![queue, now, max as i64])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(Stored::read(row, now)?);
        }
        Ok(found)
    }

    /// Removes the messages at the start of a queue from the schedule, with one statement. Around damage, each message
    /// is removed by itself, because one statement would read on after the last.
    fn unschedule_all(&mut self, queue: i64, found: &[Stored]) -> Result<()> {
        let (Some(first), Some(last)) = (found.first(), found.last()) else {
            return Ok(());
        };
        let removed = if self.probe.is_some() {
            let mut removed = 0;
            for (visible_at, seq) in found.iter().map(Stored::position) {
                removed += self.unschedule.execute([queue, visible_at, seq])?;
            }
            removed
        } else {
            let (first, last) = (first.position(), last.position());
            let range = [queue, first.0, first.1, last.0, last.1];
            self.unschedule_all.execute(range)?
        };
        if removed != found.len() {
            return Err(Failure::Corrupt("the schedule is not in order"));
        }
        Ok(())
    }

    /// Puts a received message back into the schedule, hidden until `until`.
    fn lease(&mut self, queue: i64, message: &mut Stored, until: i64, now: i64) -> Result<()> {
        message.dequeue_count = message.dequeue_count.saturating_add(1);
        message.placed.visible_at = until;
        message.placed.nonce = rand::random();
        let (placed, count) = (&message.placed, message.dequeue_count);
        self.schedule.execute(params![
            queue,
            until,
            placed.seq,
            placed.nonce,
            count,
            placed.expires_at
        ])?;
        if may_be_tracked(placed.salt) {
            self.tracked.hold(placed.seq, until, now)?;
        }
        Ok(())
    }
}
