//! The SQL statements on messages.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{Completion, ItemSet, PackItem, PutBackPlace};
use queue_core::internal::as_u32;
use queue_core::store_clock::{BEHIND, after, lifespan};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::failure::{Failure, Result};
use crate::rows::attachments::{Attachments, Items};
use crate::rows::groups::{Grouped, Groups, TurnState};
use crate::rows::queues::{Counts, Known};
use crate::rows::schema::Lazy;
use crate::rows::stored::{Handle, Parcel, Placed, Probe, Updated, may_be_tracked, may_have_group};
use crate::rows::tracked::Tracked;

mod claim;

/// The statements that change messages, within a transaction.
pub(crate) struct Messages<'c> {
    pub(crate) counts: Counts<'c>,
    pub(crate) attachments: Attachments<'c>,
    items: Items<'c>,
    pub(super) groups: Groups<'c>,
    pub(crate) tracked: Tracked<'c>,
    /// Set while a transaction reads around damage.
    pub(crate) probe: Option<Rc<Probe>>,
    /// The number of the message that was put last, if any was.
    last_put: Option<i64>,
    insert: Lazy<'c>,
    schedule: Lazy<'c>,
    any_visible: Lazy<'c>,
    first_visible: Lazy<'c>,
    unschedule_all: Lazy<'c>,
    unschedule: Lazy<'c>,
    reschedule: Lazy<'c>,
    release: Lazy<'c>,
    remove: Lazy<'c>,
    discard: Lazy<'c>,
    set_body: Lazy<'c>,
    find: Lazy<'c>,
    inserted: Lazy<'c>,
    held: Lazy<'c>,
    renewed: Lazy<'c>,
}

/// What an update does to a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    Renew(Duration),
    PutBack(PutBackPlace),
}

/// The key of a message in the schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) queue: i64,
    pub(crate) visible_at: i64,
    pub(crate) seq: i64,
}

impl<'c> Messages<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            counts: Counts::new(connection),
            attachments: Attachments::new(connection),
            items: Items::new(connection),
            groups: Groups::new(connection),
            tracked: Tracked::new(connection),
            probe: None,
            last_put: None,
            insert: prepare(
                "INSERT INTO queue_messages (queue, salt, inserted_at, expires_at, body, checksum) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            ),
            schedule: prepare("INSERT INTO queue_schedule VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
            any_visible: prepare(
                "SELECT 1 FROM queue_schedule WHERE queue = ?1 AND visible_at <= ?2 LIMIT 1",
            ),
            first_visible: prepare(
                "SELECT visible_at, seq, nonce, dequeue_count, queue_schedule.expires_at, \
                 salt, inserted_at, body, checksum FROM queue_schedule LEFT JOIN queue_messages USING (seq) \
                 WHERE queue_schedule.queue = ?1 AND visible_at <= ?2 ORDER BY visible_at, seq LIMIT ?3",
            ),
            unschedule_all: prepare(
                "DELETE FROM queue_schedule WHERE queue = ?1 \
                 AND (visible_at, seq) >= (?2, ?3) AND (visible_at, seq) <= (?4, ?5)",
            ),
            unschedule: prepare(
                "DELETE FROM queue_schedule WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3",
            ),
            reschedule: prepare(
                "UPDATE queue_schedule SET visible_at = ?5, nonce = ?6 \
                 WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3 AND nonce = ?4 \
                 AND (expires_at IS NULL OR expires_at > ?7)",
            ),
            release: prepare(
                "DELETE FROM queue_schedule \
                 WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3 AND nonce = ?4 \
                 AND (expires_at IS NULL OR expires_at > ?5)",
            ),
            remove: prepare("DELETE FROM queue_messages WHERE seq = ?1"),
            discard: prepare("INSERT OR IGNORE INTO queue_discarded VALUES (?1)"),
            set_body: prepare(
                "UPDATE queue_messages SET body = ?3, checksum = ?4 WHERE seq = ?1 AND salt = ?2",
            ),
            find: prepare(
                "SELECT expires_at FROM queue_messages WHERE seq = ?1 AND salt = ?2 AND queue = ?3",
            ),
            inserted: prepare(
                "SELECT inserted_at FROM queue_messages WHERE seq = ?1 AND salt = ?2",
            ),
            held: prepare(
                "SELECT 1 FROM queue_schedule WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3 AND nonce = ?4",
            ),
            renewed: prepare(
                "SELECT visible_at, nonce FROM queue_schedule JOIN queue_messages USING (seq) \
                 WHERE queue_schedule.queue = ?1 AND visible_at BETWEEN ?2 AND ?3 \
                 AND seq = ?4 AND salt = ?5 AND dequeue_count = ?6",
            ),
        }
    }

    pub(crate) fn put(&mut self, queue: Known, parcel: &Parcel, now: i64) -> Result<Placed> {
        let Known {
            id: queue,
            group_limit,
        } = queue;
        let Parcel {
            message, checksum, ..
        } = parcel;
        let (visible_at, expires_at) = lifespan(now, message);
        let mut placed = Placed {
            seq: 0,
            salt: parcel.salt,
            nonce: rand::random(),
            inserted_at: now,
            visible_at,
            expires_at,
            place: None,
        };
        let Placed {
            salt, expires_at, ..
        } = placed;
        let body = &message.body[..];
        let row = params![queue, salt, now, expires_at, body, checksum];
        placed.seq = self.insert.insert(row)?;
        self.check_number(queue, placed.seq, salt)?;
        if let Some(group) = &message.group {
            placed.place = Some(visible_at);
            placed.visible_at =
                self.groups
                    .add(placed.seq, queue, (group, group_limit), visible_at)?;
        }
        self.schedule.execute(params![
            queue,
            placed.visible_at,
            placed.seq,
            placed.nonce,
            0,
            expires_at
        ])?;
        if let Some(id) = &message.tracked {
            self.tracked
                .add(placed.seq, id.as_str(), placed.visible_at)?;
        }
        if message.group.is_some() && !group_limit.is_in_order() {
            self.groups.turn(placed.seq, now)?;
        }
        self.counts.put(queue);
        if expires_at.is_some() {
            self.counts.expect_expiry(queue)?;
        }
        Ok(placed)
    }

    /// Checks that a new message is found by its number. SQLite numbers it after the last row; if that row is
    /// damaged, the number can be another message's.
    fn check_number(&mut self, queue: i64, seq: i64, salt: i64) -> Result<()> {
        let follows = self.last_put.is_some_and(|last| seq == last + 1);
        if !follows && !self.find.exists(params![seq, salt, queue])? {
            return Err(Failure::Corrupt("the last message is damaged"));
        }
        self.last_put = Some(seq);
        Ok(())
    }

    /// Whether any message is visible, including expired ones.
    pub(crate) fn any_visible(&mut self, queue: i64, now: i64) -> Result<bool> {
        Ok(self.any_visible.exists(params![queue, now])?)
    }

    /// Renews a lease, or puts a message back. Returns the time and the nonce of the new receipt, and when the message
    /// becomes visible unless it lies behind others.
    pub(crate) fn update(
        &mut self,
        queue: i64,
        handle: Handle,
        change: Change,
        body: Option<&(Bytes, i64)>,
        now: i64,
    ) -> Result<Updated> {
        let place = match change {
            Change::Renew(time) | Change::PutBack(PutBackPlace::After(time)) => after(now, time),
            Change::PutBack(PutBackPlace::Kept) => self.place(handle, now)?,
        };
        let handle = self.followed(queue, handle)?;
        let nonce = rand::random();
        let grouped = self.grouped(handle.seq, handle.salt)?;
        let place = match grouped {
            Some(_) => self.before_expiry(handle, place)?,
            None => place,
        };
        let takes_turn = grouped.is_some_and(|grouped| match grouped.turn {
            Some(TurnState::Received) => matches!(change, Change::PutBack(_)),
            Some(TurnState::Unreceived) => true,
            None => false,
        });
        let is_behind = handle.visible_at == BEHIND || takes_turn;
        let visible_at = if is_behind { BEHIND } else { place };
        let changed = self.reschedule.execute(params![
            queue,
            handle.visible_at,
            handle.seq,
            handle.nonce,
            visible_at,
            nonce,
            now
        ])?;
        if changed == 0 {
            return Err(self.why_not(queue, handle, now)?);
        }
        if may_be_tracked(handle.salt) {
            self.tracked.see(handle.seq, visible_at)?;
            if let Change::PutBack(_) = change {
                self.tracked.let_go(handle.seq)?;
            }
        }
        if takes_turn {
            self.groups.lay_behind(handle.seq, place)?;
            self.groups.turn(handle.seq, now)?;
        } else if is_behind {
            self.groups.set_place(handle.seq, place)?;
        }
        if let Some((body, checksum)) = body {
            let row = params![handle.seq, handle.salt, &body[..], checksum];
            if self.set_body.execute(row)? == 0 {
                return Err(Failure::Corrupt("a scheduled message has no body"));
            }
        }
        Ok(Updated {
            visible_at,
            nonce,
            place,
        })
    }

    /// Returns what is known of a message that has a group.
    fn grouped(&mut self, seq: i64, salt: i64) -> Result<Option<Grouped>> {
        // Nothing is looked up for most messages.
        if may_have_group(salt) {
            self.groups.find(seq)
        } else {
            Ok(None)
        }
    }

    /// Returns since when a message is visible that is in the place of its insertion. An unreadable message has no
    /// place.
    fn place(&mut self, handle: Handle, now: i64) -> Result<i64> {
        let of = params![handle.seq, handle.salt];
        let inserted = self.inserted.query_row(of, |row| row.get(0)).optional();
        match inserted.map_err(Failure::from) {
            Ok(inserted_at) => Ok(now.min(inserted_at.unwrap_or(now))),
            Err(failure) if failure.is_damage() => Ok(now),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the handle of a message that lay behind others when its receipt was given, and may be the first by now.
    fn followed(&mut self, queue: i64, handle: Handle) -> Result<Handle> {
        let held = params![queue, handle.visible_at, handle.seq, handle.nonce];
        if handle.visible_at != BEHIND || self.held.exists(held)? {
            return Ok(handle);
        }
        let grouped = self.groups.find(handle.seq)?;
        Ok(Handle {
            visible_at: grouped.map_or(BEHIND, |grouped| grouped.place),
            ..handle
        })
    }

    /// Returns until when a message that has a group can be hidden: when it expires, it makes room for the next one.
    fn before_expiry(&mut self, handle: Handle, time: i64) -> Result<i64> {
        let expires_at = self.groups.expiry(handle.seq)?;
        Ok(expires_at.map_or(time, |expires_at| time.min(expires_at)))
    }

    pub(crate) fn delete(&mut self, queue: i64, handle: Handle, now: i64) -> Result<()> {
        let handle = self.followed(queue, handle)?;
        let changed = self.release.execute(params![
            queue,
            handle.visible_at,
            handle.seq,
            handle.nonce,
            now
        ])?;
        if changed == 0 {
            return Err(self.why_not(queue, handle, now)?);
        }
        self.counts.removed(queue);
        self.leave_group(handle.seq, handle.salt, now)?;
        self.remove_body(handle.seq)
    }

    /// Tells the triggers when a message is removed, which decide whose turn is next.
    fn leave_group(&mut self, seq: i64, salt: i64, now: i64) -> Result<()> {
        if may_have_group(salt) {
            self.groups.leave(seq, now)?;
        }
        Ok(())
    }

    /// Deletes a message that has not been received again since this receive, even if an update has changed its
    /// receipt.
    pub(crate) fn complete(
        &mut self,
        queue: i64,
        completion: &Completion<'_>,
        now: i64,
    ) -> Result<()> {
        let settle = |this: &mut Self, handle| match completion.item {
            Some(PackItem { number, of }) => {
                let items = ItemSet::from_iter([number]);
                this.delete_items(queue, handle, (&items, of), now)
            }
            None => this.delete(queue, handle, now),
        };
        let handle = Handle::parse(completion.id, &completion.receipt);
        match settle(self, handle) {
            Err(Failure::ReceiptMismatch) => {}
            deleted => return deleted,
        }
        let grant = after(0, completion.visibility);
        let (earliest, latest) = (
            handle.visible_at.saturating_sub(grant),
            now.saturating_add(grant),
        );
        let Handle { seq, salt, .. } = handle;
        let found = self.renewed.query_row(
            params![
                queue,
                earliest,
                latest,
                seq,
                salt,
                as_u32(completion.dequeue_count)
            ],
            |row| Ok((row.get(0)?, row.get(1)?)),
        );
        let (visible_at, nonce) = found.optional()?.ok_or(Failure::ReceiptMismatch)?;
        let renewed = Handle {
            visible_at,
            nonce,
            ..handle
        };
        settle(self, renewed)
    }

    /// Deletes items of a message that has `of` of them, and the message with the last of them.
    pub(super) fn delete_items(
        &mut self,
        queue: i64,
        handle: Handle,
        (items, of): (&ItemSet, u32),
        now: i64,
    ) -> Result<()> {
        let Handle {
            seq,
            salt,
            visible_at,
            nonce,
        } = handle;
        // All items of a message that is gone are gone.
        if let gone @ Failure::MessageNotFound = self.why_not(queue, handle, now)? {
            return Err(gone);
        }
        let mut deleted = self.items.deleted(seq, salt)?;
        if !deleted.insert_all(items) {
            return Err(Failure::MessageNotFound);
        }
        if !self.held.exists(params![queue, visible_at, seq, nonce])? {
            return Err(Failure::ReceiptMismatch);
        }
        if deleted.len() >= of {
            return self.delete(queue, handle, now);
        }
        self.items.set(seq, salt, &deleted)
    }

    /// Forgets what another connection or a rollback may have changed.
    pub(crate) fn forget(&mut self) {
        self.attachments.forget();
        self.items.forget();
    }

    /// Removes a body, and detaches what is attached. Around damage, the body stays where it is and is recorded as
    /// discarded: to remove it may read a damaged page.
    fn remove_body(&mut self, seq: i64) -> Result<()> {
        if self.probe.is_some() {
            self.discard.execute([seq])?;
            return Ok(());
        }
        self.remove.execute([seq])?;
        self.items.remove(seq)?;
        self.attachments.detach(seq)
    }

    /// Removes the message at a place, if there still is one.
    pub(crate) fn drop_at(&mut self, place: &Place) -> Result<()> {
        let key = params![place.queue, place.visible_at, place.seq];
        if self.unschedule.execute(key)? > 0 {
            self.counts.removed(place.queue);
            self.remove_body(place.seq)?;
        }
        Ok(())
    }

    /// Finds out why no message has this handle.
    fn why_not(&mut self, queue: i64, handle: Handle, now: i64) -> Result<Failure> {
        let mut rows = self.find.query(params![handle.seq, handle.salt, queue])?;
        let lives = match rows.next()? {
            Some(row) => row.get::<_, Option<i64>>(0)?.is_none_or(|at| at > now),
            None => false,
        };
        Ok(if lives {
            Failure::ReceiptMismatch
        } else {
            Failure::MessageNotFound
        })
    }
}
