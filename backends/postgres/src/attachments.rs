//! The statements on attachments.

use bytes::Bytes;
use queue_core::QueueName;
use queue_core::backend::{Attachment, AttachmentPart, StorageId};

use crate::failure::{Failure, Result};
use crate::messages::parse_id;
use crate::session::{Session, column};
use crate::values::Parameter;

/// The size of a part, in bytes. Only the last part may be shorter.
pub(crate) const PART: usize = 1024 * 1024;

/// How many attachments one step removes.
const STEP: i64 = 16;

const NEW: &str = "SELECT nextval('attachment_ids')";
const ADD: &str = "INSERT INTO attachments VALUES ($1, $2, $3, $4)";

/// The attachment of a message, which then keeps it until this transaction ends, and whether there is such a message, locked
/// or not.
const OF: &str = "WITH held AS MATERIALIZED (
        SELECT attachment FROM messages
        WHERE seq = $1 AND queue = (SELECT id FROM queues WHERE name = $2) FOR SHARE SKIP LOCKED
    )
    SELECT (SELECT true FROM messages WHERE seq = $1) IS NOT NULL, held.*
    FROM (SELECT) AS one LEFT JOIN (SELECT true, attachment FROM held) AS held ON true";
const SET: &str = "UPDATE messages SET attachment = $2 WHERE seq = $1";

/// A part of a message's attachment, and the size of the whole.
const READ: &str = "SELECT queues.id IS NOT NULL, messages.attachment, first.size, wanted.data
    FROM (SELECT) AS one LEFT JOIN queues ON name = $1
    LEFT JOIN messages ON seq = $2 AND queue = queues.id
    LEFT JOIN attachments AS first ON first.id = attachment AND first.part = 0
    LEFT JOIN attachments AS wanted ON wanted.id = attachment AND wanted.part = $3
    WHERE queues.id IS NULL OR seq IS NOT NULL";

const REMOVE: &str = "WITH picked AS MATERIALIZED (
        SELECT ctid AS place, attachment FROM left_behind LIMIT $1 FOR UPDATE SKIP LOCKED
    ), removed AS (
        DELETE FROM attachments USING picked WHERE id = picked.attachment
            AND NOT EXISTS (SELECT FROM messages WHERE messages.attachment = picked.attachment)
    ), done AS (
        DELETE FROM left_behind WHERE ctid = ANY (ARRAY (SELECT place FROM picked)) RETURNING 1
    )
    SELECT count(*) FROM done";

/// Stores the data of a message that will be put, or finds that of another message. Returns its id, or why there is none.
pub(crate) async fn take(
    session: &mut Session,
    attachment: &Attachment,
) -> Result<Result<Option<i64>>> {
    match attachment {
        Attachment::New(data) => store(session, data).await.map(|id| Ok(Some(id))),
        Attachment::Of { queue, id } => {
            let parameters: [Parameter<'_>; 2] = [&parse_id(id), &queue.as_str()];
            let rows = session.query(OF, &parameters).await?;
            let row = rows.first().ok_or(Failure::Corrupt("no message"))?;
            let is_held = column::<Option<bool>>(row, 1)?.is_some();
            if !is_held && column(row, 0)? {
                return Ok(Err(Failure::Busy));
            }
            Ok(Ok(column(row, 2)?))
        }
    }
}

async fn store(session: &mut Session, data: &Bytes) -> Result<i64> {
    let rows = session.query(NEW, &[]).await?;
    let id: i64 = column(rows.first().ok_or(Failure::Corrupt("no id"))?, 0)?;
    let size = i64::try_from(data.len()).unwrap_or(i64::MAX);
    let last = data.len().saturating_sub(1) / PART;
    for part in 0..=last {
        let end = data.len().min((part + 1) * PART);
        let (number, bytes) = (number(part), &data[part * PART..end]);
        session.query(ADD, &[&id, &number, &size, &bytes]).await?;
    }
    Ok(id)
}

fn number(part: usize) -> i32 {
    i32::try_from(part).unwrap_or(i32::MAX)
}

/// Gives a message, which this transaction has put, its attachment.
pub(crate) async fn attach(session: &mut Session, seq: i64, attachment: i64) -> Result<()> {
    session.query(SET, &[&seq, &attachment]).await?;
    Ok(())
}

/// Reads the part of a message's attachment at this byte, and what follows in the part.
pub(crate) async fn read_part(
    session: &mut Session,
    queue: &QueueName,
    id: &StorageId,
    from: u64,
) -> Result<AttachmentPart> {
    let part = usize::try_from(from).unwrap_or(usize::MAX);
    let (part, within) = (part / PART, part % PART);
    let parameters: [Parameter<'_>; 3] = [&queue.as_str(), &parse_id(id), &number(part)];
    let rows = session.query(READ, &parameters).await?;
    let row = rows.first().ok_or(Failure::MessageNotFound)?;
    if !column::<bool>(row, 0)? {
        return Err(Failure::QueueNotFound);
    }
    if column::<Option<i64>>(row, 1)?.is_none() {
        return Ok(AttachmentPart::Missing);
    }
    let incomplete = Failure::Corrupt("an attachment is incomplete");
    let size: Option<i64> = column(row, 2)?;
    if from >= size.ok_or_else(|| incomplete.clone())?.unsigned_abs() {
        return Ok(AttachmentPart::Data(Bytes::new()));
    }
    let data: Option<&[u8]> = column(row, 3)?;
    let rest = data.and_then(|data| data.get(within..));
    let rest = rest.filter(|rest| !rest.is_empty()).ok_or(incomplete)?;
    Ok(AttachmentPart::Data(Bytes::copy_from_slice(rest)))
}

/// Removes some attachments that no message has any more, and returns whether there may be more.
pub(crate) async fn remove_some(session: &mut Session) -> Result<bool> {
    let rows = session.query(REMOVE, &[&STEP]).await?;
    let row = rows.first().ok_or(Failure::Corrupt("no count"))?;
    Ok(column::<i64>(row, 0)? > 0)
}
