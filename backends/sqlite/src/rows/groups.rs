//! The messages with a group. In a queue whose groups keep their order, the first of each group, by number, is scheduled as
//! any message is, the others for [`BEHIND`]; where groups have a limit, as many as may be received at once. The file's own
//! triggers make the next one visible, whatever removes a message: see `version_6.sql`.

use queue_core::backend::GroupLimit;
use queue_core::store_clock::BEHIND;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::failure::Result;
use crate::rows::schema::Lazy;
use crate::rows::stored::{Placed, Stored};

/// The statements on groups, within a transaction.
pub(crate) struct Groups<'c> {
    any_on: Lazy<'c>,
    any: Lazy<'c>,
    add: Lazy<'c>,
    find: Lazy<'c>,
    expiry: Lazy<'c>,
    set_place: Lazy<'c>,
    receive: Lazy<'c>,
    lay_behind: Lazy<'c>,
    leave: Lazy<'c>,
    turn: Lazy<'c>,
    all_turns: Lazy<'c>,
    fence: Lazy<'c>,
}

/// What is known of a message that has a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grouped {
    /// When the message becomes visible once it does not lie behind others.
    pub(crate) place: i64,
    /// `None` if its group keeps its order.
    pub(crate) turn: Option<TurnState>,
}

/// The state of a message in a group that takes turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnState {
    Unreceived,
    Received,
}

/// Returns when a message would be visible without its group, if it lies behind another.
pub(crate) fn read_place(connection: &Connection, stored: &Stored) -> Result<Option<i64>> {
    let Placed {
        visible_at, seq, ..
    } = stored.placed;
    if visible_at != BEHIND {
        return Ok(None);
    }
    let mut place = connection.prepare_cached("SELECT place FROM queue_grouped WHERE seq = ?1")?;
    Ok(place.query_row([seq], |row| row.get(0)).optional()?)
}

impl<'c> Groups<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        let prepare = |sql| Lazy::new(connection, sql);
        Self {
            any_on: prepare("SELECT 1 FROM queue_grouped WHERE queue = ?1 LIMIT 1"),
            any: prepare("SELECT 1 FROM queue_grouped WHERE queue = ?1 AND name = ?2 LIMIT 1"),
            add: prepare(
                "INSERT INTO queue_grouped (seq, queue, name, place, state) VALUES (?1, ?2, ?3, ?4, ?5)",
            ),
            find: prepare("SELECT place, state FROM queue_grouped WHERE seq = ?1"),
            expiry: prepare("SELECT expires_at FROM queue_messages WHERE seq = ?1"),
            set_place: prepare("UPDATE queue_grouped SET place = ?2 WHERE seq = ?1"),
            receive: prepare("UPDATE queue_grouped SET place = ?2, state = 2 WHERE seq = ?1"),
            lay_behind: prepare("UPDATE queue_grouped SET place = ?2, state = 1 WHERE seq = ?1"),
            leave: prepare(
                "UPDATE queue_grouped SET place = ?2 WHERE seq = ?1 AND state IS NOT NULL",
            ),
            turn: prepare(
                "INSERT INTO queue_turns SELECT queue, name, ?2 FROM queue_grouped WHERE seq = ?1",
            ),
            all_turns: prepare(
                "INSERT INTO queue_turns SELECT DISTINCT queue, name, ?2 FROM queue_grouped \
                 WHERE queue = ?1 AND state IS NOT NULL",
            ),
            fence: prepare("UPDATE queue_fence SET last = max(last + ?1, ?2) RETURNING last"),
        }
    }

    /// Whether there are messages with groups on a queue.
    pub(crate) fn are_on(&mut self, queue: i64) -> Result<bool> {
        Ok(self.any_on.exists([queue])?)
    }

    /// Adds a message to its group. Returns when it is to be scheduled if it would be visible at `place` without the group.
    /// If groups take turns, [its turn](Self::turn) is to be decided once it is scheduled.
    pub(crate) fn add(
        &mut self,
        seq: i64,
        queue: i64,
        (group, limit): (&str, GroupLimit),
        place: i64,
    ) -> Result<i64> {
        let takes_turns = !limit.is_in_order();
        let is_behind = takes_turns || self.any.exists(params![queue, group])?;
        let state = takes_turns.then_some(1);
        self.add.execute(params![seq, queue, group, place, state])?;
        Ok(if is_behind { BEHIND } else { place })
    }

    /// Returns what is known of a message; `None` if it has no group.
    pub(crate) fn find(&mut self, seq: i64) -> Result<Option<Grouped>> {
        let found = self.find.query_row([seq], |row| {
            let state: Option<i64> = row.get(1)?;
            let turn = state.map(|state| match state {
                2 => TurnState::Received,
                _ => TurnState::Unreceived,
            });
            let place = row.get(0)?;
            Ok(Grouped { place, turn })
        });
        Ok(found.optional()?)
    }

    /// Returns when a message expires.
    pub(crate) fn expiry(&mut self, seq: i64) -> Result<Option<i64>> {
        let expiry = self.expiry.query_row([seq], |row| row.get(0));
        Ok(expiry.optional()?.flatten())
    }

    /// Sets when a message that lies behind others becomes visible once it is the first.
    pub(crate) fn set_place(&mut self, seq: i64, place: i64) -> Result<()> {
        self.set_place.execute([seq, place])?;
        Ok(())
    }

    /// Records the receive of a message whose group takes turns, and decides whose turn is next.
    pub(crate) fn receive(&mut self, seq: i64, now: i64) -> Result<()> {
        self.receive.execute([seq, now])?;
        Ok(())
    }

    /// Records that a message lies behind others now, to become visible at `place`. Its turn is to be decided.
    pub(crate) fn lay_behind(&mut self, seq: i64, place: i64) -> Result<()> {
        self.lay_behind.execute([seq, place])?;
        Ok(())
    }

    /// Records when a message is removed whose group takes turns.
    pub(crate) fn leave(&mut self, seq: i64, now: i64) -> Result<()> {
        self.leave.execute([seq, now])?;
        Ok(())
    }

    /// Decides whose turn it is in the group of a message.
    pub(crate) fn turn(&mut self, seq: i64, now: i64) -> Result<()> {
        self.turn.execute([seq, now])?;
        Ok(())
    }

    /// Decides whose turn it is in all groups of a queue.
    pub(crate) fn all_turns(&mut self, queue: i64, now: i64) -> Result<()> {
        self.all_turns.execute([queue, now])?;
        Ok(())
    }

    /// Returns the highest of so many fence numbers in a row, which are higher than all before.
    pub(crate) fn last_fence(&mut self, many: i64, now: i64) -> Result<i64> {
        // The time keeps the number growing when an older copy of the file takes the file's place.
        Ok(self.fence.query_row([many, now], |row| row.get(0))?)
    }
}
