//! Queue names, by Azure Queue Storage's rules on every backend.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use queue_names::MAX_QUEUE_NAME;
use uuid::Uuid;

#[doc(inline)]
pub use queue_names::{HISTORY_SUFFIX, InvalidNameKind, POISON_SUFFIX};

/// The prefix of the names of reply queues, before 32 hexadecimal digits. Reply queues are deleted when their owner is
/// gone, so no other queue may be named like one.
pub const REPLY_PREFIX: &str = "queue-replies-";

/// The name of a queue: 3 to 63 characters, lower-case ASCII letters, digits and single dashes, with
/// a letter or digit at both ends.
///
/// ```
/// use queue_core::QueueName;
///
/// let name: QueueName = "slice-request".parse()?;
/// assert_eq!(name.poison()?.as_str(), "slice-request-poison");
/// assert!("Slice--Request".parse::<QueueName>().is_err());
/// # Ok::<(), queue_core::InvalidName>(())
/// ```
///
/// Methods that take a queue's name from a program take `impl TryInto<QueueName, Error: Into<InvalidName>>`: a
/// [`QueueName`], a `&QueueName`, a `&str` or a `String`. A name that breaks a rule is refused as [`InvalidName`], so
/// that the mistake is reported where the name is written.
///
/// ```
/// use queue_core::{InvalidName, QueueName};
///
/// fn poison_of(queue: impl TryInto<QueueName, Error: Into<InvalidName>>) -> Result<QueueName, InvalidName> {
///     queue.try_into().map_err(Into::into)?.poison()
/// }
///
/// let orders = QueueName::from_static("orders");
/// assert_eq!(poison_of("orders")?, poison_of(&orders)?);
/// assert!(poison_of("Orders").is_err());
/// # Ok::<(), InvalidName>(())
/// ```
///
/// A static name is checked at compile time:
///
/// ```
/// # use queue_core::QueueName;
/// const ORDERS: QueueName = QueueName::from_static("orders");
/// ```
///
/// ```compile_fail
/// # use queue_core::QueueName;
/// const ORDERS: QueueName = QueueName::from_static("Orders");
/// ```
#[derive(Clone)]
pub struct QueueName(Text);

#[derive(Clone)]
enum Text {
    Static(&'static str),
    Shared(Arc<str>),
}

/// An invalid queue name.
///
/// ```
/// use queue_core::{InvalidNameKind, QueueName};
///
/// let error = QueueName::new("orders_eu").unwrap_err();
/// assert_eq!(error.kind(), InvalidNameKind::Character('_', 6));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", queue_names::refusal(.name, *.kind))]
pub struct InvalidName {
    name: String,
    kind: InvalidNameKind,
}

crate::debug_as_text!(InvalidName);

impl QueueName {
    /// Creates a queue name.
    ///
    /// # Errors
    /// [`InvalidName`] names the rule that `name` breaks.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        match Self::check(name) {
            Ok(()) => Ok(Self(Text::Shared(name.into()))),
            Err(kind) => Err(InvalidName {
                name: name.to_owned(),
                kind,
            }),
        }
    }

    /// Creates a queue name without allocating. In a `const`, an invalid name does not compile.
    ///
    /// # Panics
    /// If the name is invalid.
    #[must_use]
    #[track_caller]
    pub const fn from_static(name: &'static str) -> Self {
        queue_names::require(name);
        Self::of_checked(name)
    }

    /// Creates a name from one that [`check`](Self::check) has accepted.
    pub(crate) const fn of_checked(name: &'static str) -> Self {
        Self(Text::Static(name))
    }

    /// Checks a name without creating a [`QueueName`].
    ///
    /// # Errors
    /// The first rule that `name` breaks.
    pub const fn check(name: &str) -> Result<(), InvalidNameKind> {
        queue_names::check(name)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Static(name) => name,
            Text::Shared(name) => name,
        }
    }

    /// Returns the name of this queue's poison queue.
    ///
    /// # Errors
    /// [`InvalidName`] if the name is longer than 56 characters, which leaves no room for `-poison`.
    pub fn poison(&self) -> Result<Self, InvalidName> {
        self.check_poison()?;
        let name = [self.as_str(), POISON_SUFFIX].concat();
        Ok(Self(Text::Shared(name.into())))
    }

    /// Returns the queue whose [poison queue](Self::poison) has this name, if there can be one.
    ///
    /// ```
    /// use queue_core::QueueName;
    ///
    /// let origin = QueueName::from_static("orders-poison").poison_origin();
    /// assert_eq!(origin, Some(QueueName::from_static("orders")));
    /// assert_eq!(QueueName::from_static("broken-orders").poison_origin(), None);
    /// ```
    #[must_use]
    pub fn poison_origin(&self) -> Option<Self> {
        let origin = self.as_str().strip_suffix(POISON_SUFFIX)?;
        Self::new(origin).ok()
    }

    /// Checks that the queue can have a [poison queue](Self::poison), without naming it.
    ///
    /// # Errors
    /// The error of [`poison`](Self::poison).
    pub fn check_poison(&self) -> Result<(), InvalidName> {
        self.check_suffix(POISON_SUFFIX)
    }

    /// Returns the name of the queue with this queue's [history](crate::MessageType::with_history).
    ///
    /// ```
    /// use queue_core::QueueName;
    ///
    /// let history = QueueName::from_static("orders").history()?;
    /// assert_eq!(history.as_str(), "orders-history");
    /// # Ok::<(), queue_core::InvalidName>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidName`] if the name is longer than 55 characters, which leaves no room for `-history`.
    pub fn history(&self) -> Result<Self, InvalidName> {
        self.check_suffix(HISTORY_SUFFIX)?;
        let name = [self.as_str(), HISTORY_SUFFIX].concat();
        Ok(Self(Text::Shared(name.into())))
    }

    fn check_suffix(&self, suffix: &str) -> Result<(), InvalidName> {
        // The suffix breaks only the rule of length.
        match self.as_str().len() + suffix.len() {
            ..=MAX_QUEUE_NAME => Ok(()),
            length => Err(InvalidName {
                name: [self.as_str(), suffix].concat(),
                kind: InvalidNameKind::Length(length),
            }),
        }
    }
}

impl QueueName {
    /// Creates a new name for a reply queue.
    #[must_use]
    pub fn random_reply_queue() -> Self {
        let unique = Uuid::now_v7();
        Self(Text::Shared(
            format!("{REPLY_PREFIX}{}", unique.simple()).into(),
        ))
    }

    /// Returns whether this is the name of a reply queue: `queue-replies-` and 32 lower-case hexadecimal digits.
    /// Replies go to reply queues only, whatever a request asks for.
    ///
    /// ```
    /// use queue_core::QueueName;
    ///
    /// assert!(QueueName::random_reply_queue().is_reply_queue());
    /// assert!(!QueueName::from_static("queue-replies-orders").is_reply_queue());
    /// ```
    #[must_use]
    pub fn is_reply_queue(&self) -> bool {
        let name = self.as_str();
        // Most names are not as long.
        name.len() == REPLY_PREFIX.len() + 32
            && name.strip_prefix(REPLY_PREFIX).is_some_and(|unique| {
                let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
                unique.bytes().all(digit)
            })
    }
}

impl InvalidName {
    /// The rule that the name breaks.
    #[must_use]
    pub fn kind(&self) -> InvalidNameKind {
        self.kind
    }
}

impl PartialEq for QueueName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for QueueName {}

impl PartialOrd for QueueName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueueName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for QueueName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl FromStr for QueueName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl TryFrom<&str> for QueueName {
    type Error = InvalidName;

    fn try_from(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl TryFrom<&String> for QueueName {
    type Error = InvalidName;

    fn try_from(name: &String) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl TryFrom<String> for QueueName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(&name)
    }
}

impl From<&QueueName> for QueueName {
    fn from(name: &QueueName) -> Self {
        name.clone()
    }
}

/// Lets [`QueueName`] be an argument of the methods that take any `TryInto<QueueName>`.
impl From<Infallible> for InvalidName {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl AsRef<str> for QueueName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl<'de> serde::Deserialize<'de> for QueueName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

    use super::*;

    #[test]
    fn names_at_both_edges() {
        let (short, long) = ("abc", "a".repeat(63));
        for good in [short, &long, "0-0", "a1-b2-c3"] {
            assert_eq!(QueueName::check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn each_rule_is_named() {
        let long = "a".repeat(64);
        for (bad, problem) in [
            ("ab", InvalidNameKind::Length(2)),
            ("", InvalidNameKind::Length(0)),
            (&*long, InvalidNameKind::Length(64)),
            ("a_b", InvalidNameKind::Character('_', 1)),
            ("Abc", InvalidNameKind::Character('A', 0)),
            ("abcé", InvalidNameKind::Character('é', 3)),
            ("東京", InvalidNameKind::Length(2)),
            ("東京都", InvalidNameKind::Character('東', 0)),
            ("ab🦀", InvalidNameKind::Character('🦀', 2)),
            ("../x", InvalidNameKind::Character('.', 0)),
            ("-abc", InvalidNameKind::DashAtEnd),
            ("abc-", InvalidNameKind::DashAtEnd),
            ("ab--c", InvalidNameKind::DoubleDash(2)),
        ] {
            assert_eq!(QueueName::check(bad), Err(problem), "{bad}");
        }
    }

    #[test]
    fn static_and_shared_names_are_the_same() {
        let hash = |name: &QueueName| BuildHasherDefault::<DefaultHasher>::new().hash_one(name);
        let (fixed, parsed) = (QueueName::from_static("abc"), QueueName::new("abc"));
        let parsed = parsed.expect("valid");
        assert_eq!(fixed, parsed);
        assert_eq!(fixed.cmp(&parsed), Ordering::Equal);
        assert_eq!(hash(&fixed), hash(&parsed));
        assert!(fixed < QueueName::from_static("abd"));
    }

    #[test]
    fn only_the_names_of_reply_queues_are_such() {
        let name = QueueName::random_reply_queue();
        assert!(QueueName::check(name.as_str()).is_ok() && name.is_reply_queue());
        assert_ne!(name, QueueName::random_reply_queue());
        let digits = &name.as_str()[REPLY_PREFIX.len()..];
        for other in [
            format!("{REPLY_PREFIX}{}", &digits[1..]),
            format!("{REPLY_PREFIX}{digits}0"),
            format!("{REPLY_PREFIX}g{}", &digits[1..]),
            format!("x{name}"),
            format!("{name}-poison"),
            digits.to_owned(),
        ] {
            let other: QueueName = other.parse().expect("a name");
            assert!(!other.is_reply_queue(), "{other}");
        }
    }

    #[test]
    fn a_poison_name_must_fit() {
        for (length, fits) in [(56, true), (57, false)] {
            let name = QueueName::new(&"a".repeat(length)).expect("valid");
            assert_eq!(name.poison().is_ok(), fits);
            assert_eq!(name.check_poison(), name.poison().map(drop));
            let origin = name.poison().ok().and_then(|poison| poison.poison_origin());
            assert_eq!(origin, fits.then_some(name));
        }
    }
}
