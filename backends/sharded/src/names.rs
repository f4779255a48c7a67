//! The names of a queue's shards, and of their messages.

use queue_core::backend::{PopReceipt, StorageId};
use queue_core::{Error, ErrorKind, Operation, QueueName, Result};

/// The maximum number of shards.
pub const MAX_SHARDS: u32 = 256;

/// Between the name of a queue and the number of a shard.
const SUFFIX: &str = "-s";

/// Between the number of a shard and the id of a message in it.
const OF: char = '~';

/// Returns the name of the queue that is a shard of this one.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if the queue's name is too long for that.
pub(crate) fn shard_name(queue: &QueueName, shard: u32, operation: Operation) -> Result<QueueName> {
    QueueName::new(&format!("{queue}{SUFFIX}{shard}")).map_err(|problem| {
        let detail = format!("its shards cannot be named: {problem}");
        Error::new(ErrorKind::InvalidInput, operation)
            .with_queue(queue)
            .with_detail(detail)
            .unsent()
    })
}

/// Returns the queue of which this one is a shard, and the shard's number. `None` if it is no shard.
///
/// ```
/// use queue_core::QueueName;
///
/// let (queue, shard) = queue_sharded::shard_of(&QueueName::from_static("orders-s3")).expect("a shard");
/// assert_eq!((queue.as_str(), shard), ("orders", 3));
/// assert!(queue_sharded::shard_of(&QueueName::from_static("orders")).is_none());
/// ```
#[must_use]
pub fn shard_of(name: &QueueName) -> Option<(QueueName, u32)> {
    let (queue, shard) = name.as_str().rsplit_once(SUFFIX)?;
    let number: u32 = shard.parse().ok().filter(|shard| *shard < MAX_SHARDS)?;
    // `+1` and `01` are numbers, but no names.
    let is_written_so = number.to_string() == shard;
    Some((QueueName::new(queue).ok()?, number)).filter(|_| is_written_so)
}

/// Returns the id of a message of a shard.
pub(crate) fn message_id(shard: u32, id: &StorageId) -> StorageId {
    StorageId::new(format!("{shard}{OF}{id}"))
}

/// Returns the shard of a message, and its id there. `None` if no message of a shard has such an id.
pub(crate) fn shard_of_message(id: &StorageId) -> Option<(u32, StorageId)> {
    let (shard, id) = id.as_str().split_once(OF)?;
    Some((shard.parse().ok()?, StorageId::new(id)))
}

/// Returns the receipt of a message of a shard: receipts of different accounts may be alike.
pub(crate) fn message_receipt(shard: u32, receipt: &PopReceipt) -> PopReceipt {
    PopReceipt::new(format!("{shard}{OF}{}", receipt.reveal()))
}

/// Returns a receipt as it is on this shard. `None` if it is none of a message there.
pub(crate) fn receipt_of(shard: u32, receipt: &PopReceipt) -> Option<PopReceipt> {
    let (number, receipt) = receipt.reveal().split_once(OF)?;
    let is_of_shard = number.parse() == Ok(shard);
    is_of_shard.then(|| PopReceipt::new(receipt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_come_back() {
        let queue = QueueName::from_static("orders-s1");
        let name = shard_name(&queue, 255, Operation::Put).expect("short");
        assert_eq!(name.as_str(), "orders-s1-s255");
        assert_eq!(shard_of(&name), Some((queue, 255)));
        for other in ["orders-s256", "orders-s01", "orders-sx", "orders", "s-s1"] {
            assert_eq!(
                shard_of(&QueueName::new(other).expect("valid")),
                None,
                "{other}"
            );
        }
        let id = StorageId::new("a~b#3");
        let of_shard = message_id(7, &id);
        assert_eq!(shard_of_message(&of_shard), Some((7, id)));
        assert_eq!(shard_of_message(&StorageId::new("17")), None);
    }

    #[test]
    fn a_name_without_room_for_the_suffix_is_refused() {
        let longest = QueueName::new(&"q".repeat(58)).expect("valid");
        assert!(shard_name(&longest, 255, Operation::CreateQueue).is_ok());
        let longer = QueueName::new(&"q".repeat(59)).expect("valid");
        let refused = shard_name(&longer, 255, Operation::CreateQueue).expect_err("too long");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}
