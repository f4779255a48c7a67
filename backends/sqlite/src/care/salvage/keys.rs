//! What messages have besides their bodies and places: their groups, and the ids by which they are found.

use queue_core::store_clock::BEHIND;
use rusqlite::{Connection, params};

use super::{Rows, has_table};
use crate::failure::Result;

/// Copies the groups of the messages that were copied.
pub(super) fn copy_groups(source: &Connection, target: &Connection) -> Result<()> {
    // Older versions have no groups.
    if !has_table(source, "queue_grouped")? {
        return Ok(());
    }
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_grouped SELECT seq, queue, ?2, ?3, ?4 FROM queue_messages WHERE seq = ?1",
    )?;
    Rows::of(source, "queue_grouped", "seq", "seq, name, place, state")?.each(|row| {
        let (seq, name, place): (i64, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        insert.execute(params![seq, name, place, row.get::<_, Option<i64>>(3)?])?;
        Ok(())
    })?;
    let last = source.query_row("SELECT last FROM queue_fence", [], |row| {
        row.get::<_, i64>(0)
    });
    // Fence numbers are not below the time.
    target.execute("UPDATE queue_fence SET last = ?1", [last.unwrap_or(0)])?;
    Ok(())
}

/// Makes those messages of each group visible whose turn it is, after messages or rows of groups were lost. Returns
/// the number of messages whose group is lost, which are received without their order.
pub(super) fn restore_groups(target: &Connection) -> Result<usize> {
    let ungrouped = target.execute(
        "UPDATE queue_schedule SET visible_at = (SELECT latest FROM queue_store) \
         WHERE visible_at = ?1 AND seq NOT IN (SELECT seq FROM queue_grouped)",
        [BEHIND],
    )?;
    target.execute(
        "UPDATE queue_schedule SET visible_at = CASE \
            WHEN seq NOT IN (SELECT min(seq) FROM queue_grouped WHERE state IS NULL GROUP BY queue, name) THEN ?1 \
            WHEN visible_at = ?1 THEN (SELECT place FROM queue_grouped g WHERE g.seq = queue_schedule.seq) \
            ELSE visible_at END \
         WHERE seq IN (SELECT seq FROM queue_grouped WHERE state IS NULL)",
        [BEHIND],
    )?;
    // Where groups take turns, what does not lie behind counts as received.
    target.execute(
        "UPDATE queue_grouped SET state = iif(visible_at = ?1, 1, 2) FROM queue_schedule s \
         WHERE s.seq = queue_grouped.seq AND state IS NOT NULL",
        [BEHIND],
    )?;
    target.execute(
        "INSERT INTO queue_turns SELECT DISTINCT queue, name, latest FROM queue_grouped, queue_store \
         WHERE state IS NOT NULL",
        [],
    )?;
    Ok(ungrouped)
}

/// Copies the ids of the tracked messages that were copied and scheduled.
pub(super) fn copy_tracked(source: &Connection, target: &Connection) -> Result<()> {
    // Older versions track nothing.
    if !has_table(source, "queue_tracked")? {
        return Ok(());
    }
    let mut insert = target.prepare(
        "INSERT OR IGNORE INTO queue_tracked (seq, id, visible_at) SELECT seq, ?2, visible_at FROM queue_schedule WHERE seq = ?1",
    )?;
    Rows::of(source, "queue_tracked", "seq", "seq, id")?.each(|row| {
        insert.execute(params![row.get::<_, i64>(0)?, row.get::<_, String>(1)?])?;
        Ok(())
    })?;
    Ok(())
}
