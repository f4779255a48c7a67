//! Changes of a file that break what its tables promise each other.

use queue_runtime::sqlite::ProblemKind;

/// What is wrong with a file after a change, with what the first example says.
pub(crate) struct Planted {
    pub(crate) sql: &'static str,
    pub(crate) kind: ProblemKind,
    pub(crate) count: usize,
    pub(crate) example: &'static str,
}

const fn planted(
    sql: &'static str,
    kind: ProblemKind,
    count: usize,
    example: &'static str,
) -> Planted {
    Planted {
        sql,
        kind,
        count,
        example,
    }
}

/// The first message that is not attached or a pack has the number 2, the first queue 1.
pub(crate) const PLANTED: &[Planted] = &[
    planted(
        "DELETE FROM queue_schedule WHERE seq = 2; UPDATE queue_counts SET messages = 5 WHERE queue = 1",
        ProblemKind::NotScheduled,
        1,
        "message 0000000000000002",
    ),
    planted(
        "DELETE FROM queue_messages WHERE seq = 2",
        ProblemKind::NoMessage,
        1,
        "number 2 at ",
    ),
    planted(
        "INSERT INTO queue_schedule SELECT queue, visible_at + 1, seq, nonce, 0, expires_at \
         FROM queue_schedule WHERE seq = 2; UPDATE queue_counts SET messages = 7 WHERE queue = 1",
        ProblemKind::Schedule,
        1,
        "number 2 has several places",
    ),
    planted(
        "UPDATE queue_schedule SET expires_at = expires_at + 1 WHERE seq = 2",
        ProblemKind::Schedule,
        1,
        "number 2 at ",
    ),
    planted(
        "UPDATE queue_schedule SET dequeue_count = -1 WHERE seq = 2",
        ProblemKind::Schedule,
        1,
        "number 2 at ",
    ),
    planted(
        "UPDATE queue_messages SET queue = 2 WHERE seq = 2",
        ProblemKind::Schedule,
        1,
        "of queue number 1",
    ),
    planted(
        "UPDATE queue_counts SET messages = 7 WHERE queue = 1",
        ProblemKind::Count,
        1,
        "queue `orders` has 6 messages, and 7 are recorded",
    ),
    planted(
        "UPDATE queue_counts SET expiring = 0 WHERE queue = 1",
        ProblemKind::Count,
        1,
        "queue `orders` has messages that expire",
    ),
    planted(
        "DELETE FROM queue_counts WHERE queue = 1",
        ProblemKind::Count,
        1,
        "queue `orders` has no count",
    ),
    planted(
        "INSERT INTO queue_counts (queue, messages, expiring) VALUES (99, 0, 0)",
        ProblemKind::Count,
        1,
        "queue number 99",
    ),
    planted(
        "DELETE FROM queue_queues WHERE id = 1; DELETE FROM queue_counts WHERE queue = 1",
        ProblemKind::NoQueue,
        12,
        "of queue number 1",
    ),
    planted(
        "UPDATE queue_queues SET metadata = 'no JSON' WHERE id = 1",
        ProblemKind::Queue,
        1,
        "queue `orders`: its metadata is invalid",
    ),
    planted(
        "PRAGMA ignore_check_constraints = ON; UPDATE queue_queues SET name = 'No Name' WHERE id = 1",
        ProblemKind::Queue,
        1,
        "queue `No Name`: its name is invalid",
    ),
    planted(
        "INSERT INTO queue_dropped VALUES (1)",
        ProblemKind::Queue,
        1,
        "queue `orders`: its messages are recorded as to be removed",
    ),
    planted(
        "UPDATE queue_messages SET body = CAST('altered' AS BLOB) WHERE seq = 2",
        ProblemKind::Body,
        1,
        "message 0000000000000002",
    ),
    planted(
        "UPDATE queue_messages SET salt = salt + 2 WHERE seq = 2",
        ProblemKind::Body,
        1,
        "message 0000000000000002",
    ),
    planted(
        "UPDATE queue_messages SET inserted_at = -1 WHERE seq = 2",
        ProblemKind::Time,
        1,
        "message 0000000000000002",
    ),
    planted(
        "UPDATE queue_messages SET inserted_at = 250000000000000000 WHERE seq = 3",
        ProblemKind::Time,
        1,
        "message 0000000000000003",
    ),
    planted(
        "UPDATE queue_messages SET inserted_at = expires_at WHERE seq = 2",
        ProblemKind::Time,
        1,
        "message 0000000000000002",
    ),
    planted(
        "UPDATE queue_schedule SET visible_at = 250000000000000000 WHERE seq = 2",
        ProblemKind::Time,
        1,
        "number 2 at 250000000000000000",
    ),
    planted(
        "UPDATE queue_store SET latest = -1",
        ProblemKind::Time,
        1,
        "the file's own time",
    ),
    planted(
        "DELETE FROM queue_store",
        ProblemKind::Time,
        1,
        "the file's own time",
    ),
    planted(
        "DELETE FROM queue_attachment_parts WHERE id = 65537",
        ProblemKind::Attachment,
        1,
        "attachment 1 is not whole",
    ),
    planted(
        "UPDATE queue_attachment_parts SET data = zeroblob(length(data)) WHERE id = 65537",
        ProblemKind::Attachment,
        1,
        "part 1 of attachment 1 is damaged",
    ),
    planted(
        "UPDATE queue_attachments SET messages = 2 WHERE id = 1",
        ProblemKind::Attachment,
        1,
        "attachment 1 is that of 1 messages",
    ),
    planted(
        "DELETE FROM queue_attached WHERE attachment = 1",
        ProblemKind::Attachment,
        1,
        "attachment 1 is that of 0 messages",
    ),
    planted(
        "DELETE FROM queue_attachments WHERE id = 1",
        ProblemKind::Attachment,
        3,
        "attachment 1 of number 1 is missing",
    ),
    planted(
        "INSERT INTO queue_attached VALUES (99, 1); UPDATE queue_attachments SET messages = 2 WHERE id = 1",
        ProblemKind::Attachment,
        1,
        "attachment 1 is that of number 99, which is missing",
    ),
    planted(
        "UPDATE queue_deleted_items SET salt = salt + 1",
        ProblemKind::Items,
        1,
        "message 0000000000000005",
    ),
    planted(
        "UPDATE queue_results SET result = CAST('altered' AS BLOB) WHERE key = CAST('done' AS BLOB)",
        ProblemKind::Result,
        1,
        "result number 1",
    ),
    planted(
        "UPDATE queue_results SET checksum = NULL WHERE key = CAST('done' AS BLOB)",
        ProblemKind::Result,
        1,
        "result number 1",
    ),
    planted(
        "UPDATE queue_results SET key = x'ff' WHERE key = CAST('done' AS BLOB)",
        ProblemKind::Result,
        1,
        "result number 1",
    ),
    planted(
        "UPDATE queue_results SET ends_at = -1 WHERE key = CAST('done' AS BLOB)",
        ProblemKind::Time,
        1,
        "result number 1",
    ),
    planted(
        "DROP TABLE queue_consumers",
        ProblemKind::Missing,
        1,
        "`queue_consumers`",
    ),
    planted(
        "DROP INDEX queue_results_by_end",
        ProblemKind::Missing,
        1,
        "`queue_results_by_end`",
    ),
];
