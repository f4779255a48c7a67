//! ```text
//! "QMSG" 1 | token: 8 bytes | visible in, milliseconds: 8 | messages: 8 | bytes: 8 | name of the queue
//! ```
//!
//! Numbers are big-endian.

use std::time::Duration;

use queue_core::QueueName;
use queue_core::notify::Notification;

const MAGIC: &[u8] = b"QMSG\x01";
const NUMBERS: usize = 4;

/// More than the longest datagram: a queue's name has at most 63 bytes.
pub(crate) const MAX: usize = 128;

/// The contents of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) queue: QueueName,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) visible_in: Duration,
}

impl Datagram {
    pub(crate) fn write(&self, token: i64) -> Vec<u8> {
        let millis = self.visible_in.as_nanos().div_ceil(1_000_000);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(token.to_be_bytes());
        for number in [millis, self.messages, self.bytes] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.queue.as_str().as_bytes());
        bytes
    }

    /// Reads a datagram to the process with this token. Returns `None` for all others.
    pub(crate) fn read(datagram: &[u8], token: i64) -> Option<Self> {
        let rest = datagram.strip_prefix(MAGIC)?;
        let (numbers, name) = rest.split_at_checked(NUMBERS * 8)?;
        let mut numbers = numbers
            .chunks_exact(8)
            .map(|number| u64::from_be_bytes(number.try_into().expect("8 bytes")));
        let mut next = || numbers.next();
        if next()?.cast_signed() != token {
            return None;
        }
        let (millis, messages, bytes) = (next()?, next()?, next()?);
        Some(Self {
            queue: std::str::from_utf8(name).ok()?.parse().ok()?,
            messages,
            bytes,
            visible_in: Duration::from_millis(millis),
        })
    }

    pub(crate) fn notification<'a>(&'a self, account: &'a str) -> Notification<'a> {
        Notification::new(account, &self.queue)
            .with_messages(self.messages, self.bytes)
            .with_visible_in(self.visible_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_datagram_with_the_token_is_read() {
        let datagram = Datagram {
            queue: "orders".parse().expect("valid"),
            messages: 3,
            bytes: 1200,
            visible_in: Duration::from_micros(1500),
        };
        let token = -7;
        let written = datagram.write(token);
        let expected = Datagram {
            visible_in: Duration::from_millis(2),
            ..datagram
        };
        assert_eq!(Datagram::read(&written, token), Some(expected));
        assert_eq!(Datagram::read(&written, 7), None);
        for length in 0..=MAGIC.len() + NUMBERS * 8 {
            assert_eq!(Datagram::read(&written[..length], token), None, "{length}");
        }
        let mut name = written.clone();
        *name.last_mut().expect("not empty") = 0xff;
        assert_eq!(Datagram::read(&name, token), None);
        let longest = "q".repeat(63).parse().expect("valid");
        let longest = Datagram {
            queue: longest,
            messages: u64::MAX,
            bytes: u64::MAX,
            visible_in: Duration::MAX,
        };
        assert!(longest.write(token).len() < MAX);
    }
}
