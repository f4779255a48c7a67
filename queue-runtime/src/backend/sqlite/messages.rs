//! The SQL statements on messages.

use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{NewMessage, TimeToLive};
use rusqlite::{Connection, PrepFlags, Row, Statement, params};

use super::command::{Claimed, Placed};
use super::failure::{Failure, Result};
use super::receipt::Handle;
use crate::backend::store_clock::after;

/// The number of expired messages that one claim removes before it gives up.
const MAX_EXPIRED: usize = 4096;

/// The statements that change messages, within a transaction.
pub(super) struct Messages<'c> {
    insert: Statement<'c>,
    schedule: Statement<'c>,
    any_visible: Statement<'c>,
    first_visible: Statement<'c>,
    lease: Statement<'c>,
    unschedule: Statement<'c>,
    reschedule: Statement<'c>,
    release: Statement<'c>,
    remove: Statement<'c>,
    set_body: Statement<'c>,
    find: Statement<'c>,
    expired: Statement<'c>,
}

/// The result of a claim.
pub(super) enum Visible {
    /// As many messages as requested, or all visible ones.
    Messages(Vec<Claimed>),
    /// None among the first [`MAX_EXPIRED`], all of which had expired. There may be more.
    NotYetKnown,
}

/// The key of a message in the schedule.
struct Place {
    queue: i64,
    visible_at: i64,
    seq: i64,
}

impl<'c> Messages<'c> {
    pub(super) fn prepare(connection: &'c Connection) -> Result<Self> {
        let prepare =
            |sql| connection.prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_PERSISTENT);
        Ok(Self {
            insert: prepare(
                "INSERT INTO messages (queue, salt, inserted_at, expires_at, body) \
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?,
            schedule: prepare("INSERT INTO schedule VALUES (?1, ?2, ?3, ?4, 0, ?5)")?,
            any_visible: prepare(
                "SELECT 1 FROM schedule WHERE queue = ?1 AND visible_at <= ?2 LIMIT 1",
            )?,
            first_visible: prepare(
                "SELECT visible_at, seq, dequeue_count, schedule.expires_at, salt, inserted_at, body \
                 FROM schedule CROSS JOIN messages USING (seq) \
                 WHERE schedule.queue = ?1 AND visible_at <= ?2 ORDER BY visible_at, seq LIMIT ?3",
            )?,
            lease: prepare(
                "UPDATE schedule SET visible_at = ?4, nonce = ?5, dequeue_count = ?6 \
                 WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3",
            )?,
            unschedule: prepare(
                "DELETE FROM schedule WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3",
            )?,
            reschedule: prepare(
                "UPDATE schedule SET visible_at = ?5, nonce = ?6 \
                 WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3 AND nonce = ?4 \
                 AND (expires_at IS NULL OR expires_at > ?7)",
            )?,
            release: prepare(
                "DELETE FROM schedule \
                 WHERE queue = ?1 AND visible_at = ?2 AND seq = ?3 AND nonce = ?4 \
                 AND (expires_at IS NULL OR expires_at > ?5)",
            )?,
            remove: prepare("DELETE FROM messages WHERE seq = ?1")?,
            set_body: prepare("UPDATE messages SET body = ?2 WHERE seq = ?1")?,
            find: prepare(
                "SELECT expires_at FROM messages WHERE seq = ?1 AND salt = ?2 AND queue = ?3",
            )?,
            expired: prepare(
                "SELECT queue, visible_at, seq FROM schedule \
                 WHERE expires_at IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2",
            )?,
        })
    }

    pub(super) fn put(&mut self, queue: i64, message: &NewMessage, now: i64) -> Result<Placed> {
        let mut placed = Placed {
            seq: 0,
            salt: rand::random(),
            nonce: rand::random(),
            inserted_at: now,
            visible_at: after(now, message.delay),
            expires_at: match message.time_to_live {
                TimeToLive::Never => None,
                TimeToLive::After(lifetime) => Some(after(now, lifetime)),
            },
        };
        let Placed {
            salt, expires_at, ..
        } = placed;
        let body = &message.body[..];
        let row = params![queue, salt, now, expires_at, body];
        placed.seq = self.insert.insert(row)?;
        self.schedule.execute(params![
            queue,
            placed.visible_at,
            placed.seq,
            placed.nonce,
            expires_at
        ])?;
        Ok(placed)
    }

    /// Whether any message is visible, including expired ones.
    pub(super) fn any_visible(&mut self, queue: i64, now: i64) -> Result<bool> {
        Ok(self.any_visible.exists(params![queue, now])?)
    }

    /// Leases the first visible messages, each until the next time of `leases`.
    pub(super) fn claim(
        &mut self,
        queue: i64,
        leases: &mut dyn Iterator<Item = i64>,
        max: usize,
        now: i64,
    ) -> Result<Visible> {
        let mut claimed = Vec::new();
        let mut expired = 0;
        loop {
            let wanted = max - claimed.len();
            let found = self.first_visible(queue, now, wanted)?;
            let all = found.len() < wanted;
            for mut message in found {
                let place = message.place(queue);
                if message.placed.expires_at.is_some_and(|at| at <= now) {
                    self.drop_at(&place)?;
                    expired += 1;
                } else if let Some(until) = leases.next() {
                    self.lease(&mut message, &place, until)?;
                    claimed.push(message);
                }
            }
            if all || claimed.len() == max {
                return Ok(Visible::Messages(claimed));
            }
            if expired >= MAX_EXPIRED {
                return Ok(if claimed.is_empty() {
                    Visible::NotYetKnown
                } else {
                    Visible::Messages(claimed)
                });
            }
        }
    }

    fn first_visible(&mut self, queue: i64, now: i64, max: usize) -> Result<Vec<Claimed>> {
        let mut rows = self.first_visible.query(params![queue, now, max as i64])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(read(row, now)?);
        }
        Ok(found)
    }

    fn lease(&mut self, message: &mut Claimed, place: &Place, until: i64) -> Result<()> {
        message.dequeue_count = message.dequeue_count.saturating_add(1);
        message.placed.visible_at = until;
        message.placed.nonce = rand::random();
        self.lease.execute(params![
            place.queue,
            place.visible_at,
            place.seq,
            until,
            message.placed.nonce,
            message.dequeue_count
        ])?;
        Ok(())
    }

    /// Makes a message visible after `visibility`. Returns the time and the new nonce.
    pub(super) fn update(
        &mut self,
        queue: i64,
        handle: Handle,
        visibility: Duration,
        body: Option<&Bytes>,
        now: i64,
    ) -> Result<(i64, i64)> {
        let (visible_at, nonce) = (after(now, visibility), rand::random());
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
        if let Some(body) = body {
            self.set_body.execute(params![handle.seq, &body[..]])?;
        }
        Ok((visible_at, nonce))
    }

    pub(super) fn delete(&mut self, queue: i64, handle: Handle, now: i64) -> Result<()> {
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
        self.remove.execute([handle.seq])?;
        Ok(())
    }

    /// Removes up to `max` expired messages of all queues. Returns their number.
    pub(super) fn drop_expired(&mut self, now: i64, max: usize) -> Result<usize> {
        let mut places = Vec::new();
        let mut rows = self.expired.query(params![now, max as i64])?;
        while let Some(row) = rows.next()? {
            places.push(Place {
                queue: row.get(0)?,
                visible_at: row.get(1)?,
                seq: row.get(2)?,
            });
        }
        drop(rows);
        for place in &places {
            self.drop_at(place)?;
        }
        Ok(places.len())
    }

    fn drop_at(&mut self, place: &Place) -> Result<()> {
        let key = params![place.queue, place.visible_at, place.seq];
        self.unschedule.execute(key)?;
        self.remove.execute([place.seq])?;
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

impl Claimed {
    fn place(&self, queue: i64) -> Place {
        Place {
            queue,
            visible_at: self.placed.visible_at,
            seq: self.placed.seq,
        }
    }
}

/// Reads a row of `first_visible` for a receive at `now`.
fn read(row: &Row<'_>, now: i64) -> Result<Claimed> {
    let body = row.get_ref(6)?.as_blob();
    let body = body.map_err(|_| Failure::Corrupt("a message body is not a blob"))?;
    Ok(Claimed {
        placed: Placed {
            visible_at: row.get(0)?,
            seq: row.get(1)?,
            expires_at: row.get(3)?,
            salt: row.get(4)?,
            inserted_at: row.get(5)?,
            nonce: 0,
        },
        received_at: now,
        dequeue_count: row.get(2)?,
        body: Bytes::copy_from_slice(body),
    })
}
