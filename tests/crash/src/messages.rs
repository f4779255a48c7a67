//! The messages of the suites.

use std::time::Duration;

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

/// A visibility timeout that ends soon after a kill.
pub const LEASE: Duration = Duration::from_secs(1);

/// The visibility timeout of consumers that are not stopped, on a machine that may stand still.
pub const LONG_LEASE: Duration = Duration::from_secs(600);

/// A message with a name, by which the ledgers know it.
pub trait Named: Message + Clone + Sync {
    /// The name.
    fn name(&self) -> &str;

    /// Whether the payload is stored beside the message.
    fn is_large(&self) -> bool {
        false
    }

    /// The follow-up that completing the message submits.
    fn follow_up(&self) -> Option<Receipt> {
        None
    }
}

/// The message that producers submit.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "crash.order", queue = "orders", visibility_timeout = "1s")]
pub struct CrashOrder {
    /// Unique; its last letter is that of its [`Class`].
    pub name: String,
    /// Makes the body larger.
    #[serde(default)]
    pub padding: String,
}

impl CrashOrder {
    /// Creates an order with a small body.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            padding: String::new(),
        }
    }
}

/// The follow-up of an order of the class [`Class::Receipted`].
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "crash.receipt", queue = "receipts", visibility_timeout = "1s")]
pub struct Receipt {
    /// The order's name, after [`Receipt::PREFIX`].
    pub name: String,
}

/// A message whose sender waits for an [`Answer`].
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(
    kind = "crash.question",
    queue = "questions",
    visibility_timeout = "1s"
)]
pub struct Question {
    /// Unique.
    pub number: u64,
}

/// The reply to a [`Question`].
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "crash.answer")]
pub struct Answer {
    /// The number of the question.
    pub question: u64,
}

/// A message that is submitted once by key.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "crash.reminder", queue = "reminders")]
pub struct Reminder {
    /// The key.
    #[message(key)]
    pub number: u64,
}

/// A message of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "crash.tick", queue = "ticks")]
pub struct Tick {
    /// The name of the schedule.
    pub schedule: String,
    /// The number of the tick.
    pub number: u64,
}

/// How orders differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Has neither a follow-up nor a time to live.
    Plain,
    /// Has a follow-up.
    Receipted,
    /// Has a time to live.
    Expiring,
}

impl Class {
    /// The class of an order of that name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name.as_bytes().last() {
            Some(b'r') => Self::Receipted,
            Some(b'e') => Self::Expiring,
            _ => Self::Plain,
        }
    }

    /// The last letter of the names.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Plain => 'p',
            Self::Receipted => 'r',
            Self::Expiring => 'e',
        }
    }
}

impl Receipt {
    /// Precedes the order's name.
    pub const PREFIX: &str = "receipt-of-";
}

impl Named for CrashOrder {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_large(&self) -> bool {
        !self.padding.is_empty()
    }

    fn follow_up(&self) -> Option<Receipt> {
        (Class::of(&self.name) == Class::Receipted).then(|| Receipt {
            name: format!("{}{}", Receipt::PREFIX, self.name),
        })
    }
}

impl Named for Receipt {
    fn name(&self) -> &str {
        &self.name
    }
}
