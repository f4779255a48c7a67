//! Comparing the tables of attachments: of which messages they are, and whether they are whole.

use super::{Examination, bytes};
use crate::care::check::ProblemKind;
use crate::failure::Result;
use crate::rows::attachments::{PART, PARTS, range};
use crate::rows::stored::checksum;

pub(super) fn check(examination: &mut Examination<'_, '_>) -> Result<()> {
    examination.each(("queue_attached", "seq", "seq, attachment"), |this, row| {
        let (seq, id): (i64, i64) = (row.get(0)?, row.get(1)?);
        if !this.exists("queue_messages WHERE seq = ?1", seq)? {
            this.attachment(|| {
                format!("attachment {id} is that of number {seq}, which is missing")
            });
        }
        if !this.exists("queue_attachments WHERE id = ?1", id)? {
            this.attachment(|| format!("attachment {id} of number {seq} is missing"));
        }
        Ok(())
    })?;
    let miscounted = "SELECT id, coalesce(counted, 0) FROM queue_attachments LEFT JOIN \
        (SELECT attachment, count(*) AS counted FROM queue_attached GROUP BY attachment) ON attachment = id \
        WHERE messages <> coalesce(counted, 0)";
    examination.add_all(ProblemKind::Attachment, miscounted, |id, counted| {
        format!("attachment {id} is that of {counted} messages, and another number is recorded")
    })?;
    let columns = "id, size, messages";
    examination.each(("queue_attachments", "id", columns), |this, row| {
        let (id, size, messages): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        this.report.attachments += 1;
        // An attachment that no message has is being written or removed.
        if messages > 0 && !this.is_whole(id, size)? {
            this.attachment(|| format!("attachment {id} is not whole"));
        }
        Ok(())
    })?;
    let data = if examination.sums { "data" } else { "NULL" };
    let columns = format!("id, checksum, {data}");
    examination.each(("queue_attachment_parts", "id", &columns), |this, row| {
        let (key, sum): (i64, i64) = (row.get(0)?, row.get(1)?);
        let (of, number) = (key.div_euclid(PARTS), key.rem_euclid(PARTS));
        if let Some(data) = bytes(row, 2)?
            && checksum(key, data) != sum
        {
            this.attachment(|| format!("part {number} of attachment {of} is damaged"));
        }
        if !this.exists("queue_attachments WHERE id = ?1", of)? {
            this.attachment(|| format!("part {number} of attachment {of}, which is missing"));
        }
        Ok(())
    })
}

impl Examination<'_, '_> {
    fn attachment(&mut self, example: impl FnOnce() -> String) {
        self.report.add(ProblemKind::Attachment, example);
    }

    /// Whether an attachment has all of its parts.
    fn is_whole(&self, id: i64, size: i64) -> Result<bool> {
        let mut parts = self.connection.prepare_cached(
            "SELECT count(*), coalesce(sum(length(data)), 0) FROM queue_attachment_parts \
             WHERE id BETWEEN ?1 AND ?2",
        )?;
        let (first, last) = range(id);
        let found = parts.query_row([first, last], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let expected = u64::try_from(size)
            .unwrap_or(u64::MAX)
            .div_ceil(PART as u64);
        Ok(found == (expected.cast_signed(), size))
    }
}
