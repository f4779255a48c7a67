//! Which shard a message is put on.

use std::sync::atomic::{AtomicU32, Ordering};

use queue_core::backend::{Attachment, NewMessage};
use queue_core::{Operation, Result};

use crate::names::{shard_name, shard_of_message};

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
    /// To the shard of a message that changes with them: together that may be one step.
    Home(u32),
    /// To the shards in turn, so many to each.
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

    /// The shard of a put before which there are so many.
    pub(crate) fn shard(self, before: usize, shards: u32) -> u32 {
        match self {
            Self::Home(home) => home,
            Self::Spread { first, each } => (first + (before / each) as u32) % shards,
        }
    }
}

/// Has a message refer to the attachment of another one by what that is called on its shard.
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
}
