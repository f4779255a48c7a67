//! The rules of queue names and message types that are checked at compile time: by `queue-core`, which re-exports what
//! applications see of them, and by its derive, which would otherwise be built with all of `queue-core`.

#![cfg_attr(docsrs, feature(doc_cfg))]

use std::fmt;

/// The suffix of a poison queue's name, as in Azure Functions.
pub const POISON_SUFFIX: &str = "-poison";

/// The suffix of the name of a queue's history.
pub const HISTORY_SUFFIX: &str = "-history";

/// The length of the longest queue name, in characters.
pub const MAX_QUEUE_NAME: usize = 63;

/// The highest version of a message type: the largest integer in CloudEvents.
pub const MAX_VERSION: u32 = i32::MAX.unsigned_abs();

/// The rule that a queue name breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidNameKind {
    /// The name's number of characters is not from 3 to 63.
    Length(usize),
    /// The name contains this character, at this byte offset.
    Character(char, usize),
    /// The name starts or ends with a dash.
    DashAtEnd,
    /// The name contains two dashes in a row, at this byte offset.
    DoubleDash(usize),
}

/// Checks a queue name.
///
/// # Errors
/// The first rule that `name` breaks.
pub const fn check(name: &str) -> Result<(), InvalidNameKind> {
    let bytes = name.as_bytes();
    let length = count_chars(bytes);
    if length < 3 || length > MAX_QUEUE_NAME {
        return Err(InvalidNameKind::Length(length));
    }
    let mut at = 0;
    while at < bytes.len() {
        if !matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'-') {
            return Err(InvalidNameKind::Character(char_at(bytes, at), at));
        }
        at += 1;
    }
    if bytes[0] == b'-' || bytes[bytes.len() - 1] == b'-' {
        return Err(InvalidNameKind::DashAtEnd);
    }
    at = 1;
    while at < bytes.len() {
        if bytes[at - 1] == b'-' && bytes[at] == b'-' {
            return Err(InvalidNameKind::DoubleDash(at - 1));
        }
        at += 1;
    }
    Ok(())
}

/// Says of an invalid queue name what is wrong with it, and what is allowed.
#[must_use]
pub fn refusal(name: &str, kind: InvalidNameKind) -> String {
    format!(
        "queue name {name:?} {kind}; allowed are 3 to 63 lower-case letters, digits and single dashes, with a \
         letter or digit at both ends"
    )
}

/// Panics if the queue name is invalid; in a `const`, that does not compile.
#[track_caller]
pub const fn require(name: &str) {
    match check(name) {
        Ok(()) => {}
        Err(InvalidNameKind::Length(_)) => {
            panic!("a queue name must have 3 to 63 characters")
        }
        Err(InvalidNameKind::Character(..)) => {
            panic!("a queue name may hold only lower-case ASCII letters, digits and dashes")
        }
        Err(InvalidNameKind::DashAtEnd) => {
            panic!("a queue name must start and end with a letter or digit")
        }
        Err(InvalidNameKind::DoubleDash(_)) => {
            panic!("a queue name must not have two dashes in a row")
        }
    }
}

/// Whether CloudEvents forbids the character in attributes.
// Asked for each character of an envelope.
#[inline]
#[must_use]
pub fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

impl fmt::Display for InvalidNameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "has {length} characters"),
            Self::Character(c, at) => write!(f, "has {c:?} at byte {at}"),
            Self::DashAtEnd => f.write_str("starts or ends with a dash"),
            Self::DoubleDash(at) => write!(f, "has two dashes in a row at byte {at}"),
        }
    }
}

/// The number of characters in UTF-8 text: every byte that does not continue a character.
const fn count_chars(utf8: &[u8]) -> usize {
    let (mut at, mut chars) = (0, 0);
    while at < utf8.len() {
        chars += (!is_continuation(utf8[at])) as usize;
        at += 1;
    }
    chars
}

/// The character that starts at this byte of UTF-8 text.
const fn char_at(utf8: &[u8], at: usize) -> char {
    let first = utf8[at] as u32;
    let mut code = match utf8[at].leading_ones() {
        0 => first,
        ones => first & (0x7f >> ones),
    };
    let mut next = at + 1;
    while next < utf8.len() && is_continuation(utf8[next]) {
        code = code << 6 | (utf8[next] & 0x3f) as u32;
        next += 1;
    }
    char::from_u32(code).expect("a string is UTF-8")
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}
