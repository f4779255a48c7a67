//! Groups of messages: what a storage promises, and how many messages of a group it hands out at once.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use super::queues::Metadata;

/// Whether messages can have [groups](super::NewMessage::group).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Groups {
    /// The messages of a group are received as the [`GroupLimit`] of their queue says.
    Supported,
    /// A put with a group fails with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    Unsupported,
}

/// What a storage without [groups](Groups) says of messages that have one.
pub const NO_GROUPS: &str = "this storage keeps no order of groups; use one listener with `one_at_a_time_by`, in one process";

/// The longest [group](super::NewMessage::group), in bytes.
pub const MAX_GROUP: usize = 1024;

/// The name of the queue metadata that holds the [`GroupLimit`] of the queue's messages.
pub const GROUP_LIMIT: &str = "grouplimit";

/// Why a queue with messages that have groups does not change between [`GroupLimit::InOrder`] and another limit.
pub const GROUPS_IN_USE: &str = "messages with groups are on the queue, and either keep their order or take turns: \
    from `order` to another limit, or back, it can only change while there are none; allowed now is another number";

/// How many messages of each [group](super::NewMessage::group) of a queue are leased at once, to all processes together.
///
/// A queue's limit is the entry [`GROUP_LIMIT`] of its metadata: `order`, a number, or `unlimited`. A queue without the
/// entry is in order.
///
/// ```
/// use queue_core::backend::{GROUP_LIMIT, GroupLimit, Metadata};
///
/// let mut metadata = Metadata::new();
/// assert_eq!(GroupLimit::of(&metadata)?, None);
/// metadata.insert(GROUP_LIMIT, "3")?;
/// assert_eq!(GroupLimit::of(&metadata)?, Some("3".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum GroupLimit {
    /// One, in the order of the puts. A message that waits for its retry, or for the end of its delay, is waited for.
    #[default]
    InOrder,
    /// At most so many. Groups take turns: when a message is received, the next one of its group comes behind those that
    /// are visible. A message that waits for its retry, or for the end of its delay, lets others of its group pass.
    AtMost(NonZeroU32),
    /// Any number, in turns as for [`AtMost`](Self::AtMost).
    Unlimited,
}

/// A text that is no [`GroupLimit`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit of groups is {text:?}; allowed are `order`, a number from 1 to {max}, and `unlimited`",
    max = u32::MAX
)]
pub struct InvalidGroupLimit {
    text: String,
}

crate::debug_as_text!(InvalidGroupLimit);

impl GroupLimit {
    /// Returns the limit that a queue's metadata sets, if it sets one.
    ///
    /// # Errors
    /// [`InvalidGroupLimit`] if the entry is no limit.
    pub fn of(metadata: &Metadata) -> Result<Option<Self>, InvalidGroupLimit> {
        metadata.find(GROUP_LIMIT).map(str::parse).transpose()
    }

    /// Whether messages of a group keep their order.
    #[must_use]
    pub fn is_in_order(self) -> bool {
        self == Self::InOrder
    }

    /// Returns the highest number of messages of a group that are leased at once.
    #[must_use]
    pub fn at_once(self) -> u64 {
        match self {
            Self::InOrder => 1,
            Self::AtMost(most) => most.get().into(),
            Self::Unlimited => u64::MAX,
        }
    }
}

impl FromStr for GroupLimit {
    type Err = InvalidGroupLimit;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "order" => Ok(Self::InOrder),
            "unlimited" => Ok(Self::Unlimited),
            // One number has one text, which engines compare.
            _ if text.starts_with(['+', '0']) => Err(InvalidGroupLimit { text: text.into() }),
            _ => match text.parse() {
                Ok(most) => Ok(Self::AtMost(most)),
                Err(_) => Err(InvalidGroupLimit { text: text.into() }),
            },
        }
    }
}

impl fmt::Display for GroupLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOrder => f.write_str("order"),
            Self::AtMost(most) => most.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_one_text() {
        for text in ["order", "1", "3", "4294967295", "unlimited"] {
            let limit: GroupLimit = text.parse().expect("a limit");
            assert_eq!(limit.to_string(), text);
        }
        for text in [
            "",
            "0",
            "-1",
            "+1",
            "01",
            "4294967296",
            "many",
            "3 ",
            "Order",
        ] {
            let error = text.parse::<GroupLimit>().expect_err("no limit");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
