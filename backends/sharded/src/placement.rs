//! Which shard a message is put on; what shards and their messages are called; and errors that name the shard.

use std::sync::atomic::{AtomicU32, Ordering};

use queue_core::backend::{Attachment, NewMessage, PopReceipt, PutReceipt, StorageId};
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, Result, RetryAdvice};

/// Puts messages without a key on the shards in turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(AtomicU32);

impl Turns {
    /// Starts at a random shard, so that programs that start together do not all begin with the same one.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(rand::random()))
    }

    pub(crate) fn next(&self, shards: u32) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) % shards
    }
}

/// Where messages without a key go that are put together.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keyless {
    /// Messages go to the shard of a message that changes with them, perhaps in one step.
    Home(u32),
    /// Messages go to the shards in turn, so many to each.
    Spread { first: u32, each: usize },
}

impl Keyless {
    pub(crate) fn of(puts: usize, shards: u32, home: Option<u32>, turns: &Turns) -> Self {
        match home.filter(|home| *home < shards) {
            Some(home) => Self::Home(home),
            None => Self::Spread {
                first: turns.next(shards),
                each: puts.div_ceil(shards as usize).max(1),
            },
        }
    }

    /// The shard of a put that `before` puts precede.
    pub(crate) fn shard(self, before: usize, shards: u32) -> u32 {
        match self {
            Self::Home(home) => home,
            Self::Spread { first, each } => (first + (before / each) as u32) % shards,
        }
    }
}

/// Has a message refer to the attachment of another message by what that message is called on its shard.
pub(crate) fn translate_attachment(message: &mut NewMessage) -> Result<()> {
    if let Some(Attachment::Of { queue, id }) = &mut message.attachment
        && let Some((shard, own)) = shard_of_message(id)
    {
        (*queue, *id) = (shard_name(queue, shard, Operation::Apply)?, own);
    }
    Ok(())
}

/// Returns the shard of a key: of all shards the one with the highest hash (rendezvous hashing), so that a change of their
/// number moves no more keys than it has to.
pub(crate) fn shard_of_key(key: &str, shards: u32) -> u32 {
    let weight = |shard: &u32| mix(hash(key.as_bytes()) ^ mix(u64::from(*shard) + 1));
    (0..shards).max_by_key(weight).unwrap_or_default()
}

/// FNV-1a: the same in every program and every version.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finalizer of SplitMix64, in which each bit of the input changes half of those of the output.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The maximum number of shards.
pub const MAX_SHARDS: u32 = 256;

/// Separates a queue's name from a shard's number.
const SUFFIX: &str = "-s";

/// Separates a shard's number from the id of a message in it.
const OF: char = '~';

/// Returns the name of the queue that is a shard of this one.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if the queue's name is too long for a shard's.
pub(crate) fn shard_name(queue: &QueueName, shard: u32, operation: Operation) -> Result<QueueName> {
    QueueName::new(&format!("{queue}{SUFFIX}{shard}")).map_err(|problem| {
        let detail = format!("its shards cannot be named: {problem}");
        Error::new(ErrorKind::InvalidInput, operation)
            .with_queue(queue)
            .with_detail(detail)
            .unsent()
    })
}

/// Returns the logical queue that a shard belongs to, and the shard's number; `None` if `name` is no shard.
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

/// Returns the shard of a message, and its id there; `None` if no message of a shard has such an id.
pub(crate) fn shard_of_message(id: &StorageId) -> Option<(u32, StorageId)> {
    let (shard, id) = id.as_str().split_once(OF)?;
    Some((shard.parse().ok()?, StorageId::new(id)))
}

/// Returns the receipt of a message of a shard: receipts of different accounts may be alike.
pub(crate) fn message_receipt(shard: u32, receipt: &PopReceipt) -> PopReceipt {
    PopReceipt::new(format!("{shard}{OF}{}", receipt.reveal()))
}

/// Returns a receipt as it is on this shard; `None` if it is none of a message there.
pub(crate) fn receipt_of(shard: u32, receipt: &PopReceipt) -> Option<PopReceipt> {
    let (number, receipt) = receipt.reveal().split_once(OF)?;
    let is_of_shard = number.parse() == Ok(shard);
    is_of_shard.then(|| PopReceipt::new(receipt))
}

/// Returns the receipt of a put on a shard, with the message's id in the logical queue.
pub(crate) fn of_shard(shard: u32, mut put: PutReceipt) -> PutReceipt {
    put.id = message_id(shard, &put.id);
    put.receipt = message_receipt(shard, &put.receipt);
    put
}

/// Returns a receipt as it is on the shard of its message.
pub(crate) fn own_receipt(
    queue: &QueueName,
    shard: u32,
    receipt: &PopReceipt,
    operation: Operation,
) -> Result<PopReceipt> {
    receipt_of(shard, receipt).ok_or_else(|| {
        let error = Error::new(ErrorKind::ReceiptMismatch, operation).with_queue(queue);
        error.with_detail("the receipt is not that of a message on this shard")
    })
}

pub(crate) fn no_such_id(queue: &QueueName, operation: Operation) -> Error {
    let error = Error::new(ErrorKind::MessageNotFound, operation).with_queue(queue);
    error.with_detail("the id has not the form of any shard's ids")
}

/// Returns the error of the first shard as that of its queue, which exists if and only if this shard does.
pub(crate) fn of_queue(error: Error, queue: &QueueName) -> Error {
    if error.is_queue_gone() || error.kind() == ErrorKind::QueueExists {
        return error.with_queue(queue);
    }
    error.of_shard(queue, 0)
}

/// Returns the error of a shard that has to be there, and is not.
pub(crate) fn shard_is_missing(queue: &QueueName, shard: u32, operation: Operation) -> Error {
    let detail = "it is missing, and in use; a resize to the same number of shards creates it";
    let error = Error::new(ErrorKind::Storage, operation)
        .with_detail(detail)
        .of_shard(queue, shard);
    match operation {
        // A resize, or somebody who deletes the queue, may be on its way.
        Operation::Put | Operation::Apply | Operation::CreateQueue => error,
        _ => error.with_retry(RetryAdvice::Permanent),
    }
}

/// Returns the error of a queue without its first shard whose other shards have messages: put by a program that did not create
/// the queue, before its creator has come to the first shard, which it creates last.
pub(crate) fn first_is_missing(queue: &QueueName) -> Error {
    let detail = "it is missing, and other shards have messages: the queue is being created or deleted, or its creation or deletion was interrupted";
    Error::new(ErrorKind::Storage, Operation::Properties)
        .with_detail(detail)
        .of_shard(queue, 0)
        .with_retry(RetryAdvice::Temporary)
}

/// Whether nothing was put, for a reason that another shard may not have.
pub(crate) fn may_go_elsewhere(error: &Error) -> bool {
    error.outcome() == Outcome::NotDone && error.retry() != RetryAdvice::Permanent
}

/// Takes a shard that does not exist for one that has nothing.
pub(crate) fn unless_missing(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.is_queue_gone() => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_evenly_and_move_only_to_new_shards() {
        let keys: Vec<String> = (0..10_000)
            .map(|number| format!("[\"order\",{number}]"))
            .collect();
        let mut counts = [0; 8];
        for key in &keys {
            let (four, eight) = (shard_of_key(key, 4), shard_of_key(key, 8));
            assert!(
                eight == four || eight >= 4,
                "{key} moves from {four} to {eight}"
            );
            counts[eight as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (1_100..1_400).contains(count)),
            "{counts:?}"
        );
    }

    /// Another version of this program has to find the same shard.
    #[test]
    fn the_shard_of_a_key_never_changes() {
        let shards = ["", "a", "[\"order\",7]", "ü"].map(|key| shard_of_key(key, 16));
        assert_eq!(shards, [3, 2, 2, 13]);
    }

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
