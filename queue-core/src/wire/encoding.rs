//! How bytes and values are written as text: Base64, hexadecimal digits, what XML can carry, and times.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::Offset;

use crate::clock::Timestamp;
use crate::text::all_bytes;

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Engine = base64::engine::Simd;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static BASE64: LazyLock<Engine> = LazyLock::new(|| Engine::standard(CONFIG));

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Engine = base64::engine::GeneralPurpose;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static BASE64: LazyLock<Engine> =
    LazyLock::new(|| Engine::new(&base64::alphabet::STANDARD, CONFIG));

/// Encodes bytes as standard Base64 with padding.
#[must_use]
pub fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Decodes Base64, or returns `None` if the text is empty or not Base64.
///
/// White space is ignored and padding is optional, because producers differ.
#[must_use]
pub fn unwrap_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    if !text.iter().any(u8::is_ascii_whitespace) {
        return BASE64.decode(text).ok();
    }
    let mut text = text.to_vec();
    text.retain(|byte| !byte.is_ascii_whitespace());
    BASE64.decode(text).ok()
}

/// Returns bytes as hexadecimal digits in lower case.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    digits.collect()
}

/// Returns the bytes that hexadecimal digits say, or `None` if they say none.
pub(crate) fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    let byte = |pair: &[u8; 2]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    pairs.iter().map(byte).collect()
}

/// Returns the number that exactly 32 hexadecimal digits say. A text with fewer digits is no number: the rest was lost
/// on the way.
#[must_use]
pub fn hex(digits: &str) -> Option<u128> {
    let is_whole = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_whole.then(|| u128::from_str_radix(digits, 16).ok())?
}

/// Why XML cannot carry a body unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotXmlText {
    /// The body is not UTF-8.
    #[error("the body is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The offset of the first byte that is not UTF-8.
        at: usize,
    },
    /// The body contains a character that XML forbids or changes.
    #[error("the body contains {character:?} at byte {at}, which XML cannot carry")]
    Character {
        /// The first character that XML forbids or changes.
        character: char,
        /// The byte offset of `character`.
        at: usize,
    },
}

/// Returns the body as text if XML can carry it unchanged.
///
/// # Errors
/// [`NotXmlText`] locates the first character that XML forbids or changes.
pub fn xml_text(body: &[u8]) -> Result<&str, NotXmlText> {
    let text = std::str::from_utf8(body).map_err(|error| NotXmlText::NotUtf8 {
        at: error.valid_up_to(),
    })?;
    // Most bodies are plain ASCII.
    if all_bytes(text, |byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n')) {
        return Ok(text);
    }
    let unfit = |c: char| match c {
        '\t' | '\n' => false,
        // XML turns a carriage return into a line feed.
        '\r' => true,
        '\u{fffe}' | '\u{ffff}' => true,
        c => c < ' ',
    };
    match text.char_indices().find(|(_, c)| unfit(*c)) {
        Some((at, character)) => Err(NotXmlText::Character { character, at }),
        None => Ok(text),
    }
}

/// Parses a time in the form that this crate writes, such as `2026-11-22T13:51:53.123456789Z`, at a fourth of the cost
/// of a parser for all forms. Returns `None` for any other form.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = text.strip_suffix('Z')?.split_at_checked(19)?;
    let bytes = seconds.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators
        .iter()
        .any(|&(at, separator)| bytes[at] != separator)
    {
        return None;
    }
    let year = i16::try_from(number(&bytes[..4])?).ok()?;
    let two = |at| i8::try_from(number(&bytes[at..at + 2])?).ok();
    let date = Date::new(year, two(5)?, two(8)?).ok()?;
    let time = Time::new(two(11)?, two(14)?, two(17)?, nanoseconds(fraction)?).ok()?;
    let date_time = DateTime::from_parts(date, time);
    Offset::UTC.to_timestamp(date_time).ok()
}

/// Writes a time as `parse_time` reads it, at less than half the cost of a printer for all forms.
pub(super) fn write_time(out: &mut Vec<u8>, time: Timestamp) {
    let at = Offset::UTC.to_datetime(time);
    if at.year() < 0 {
        return out.extend_from_slice(time.to_string().as_bytes());
    }
    let mut text = *b"0000-00-00T00:00:00.000000000Z";
    set_digits(&mut text[..4], at.year().into());
    set_digits(&mut text[5..7], at.month().into());
    set_digits(&mut text[8..10], at.day().into());
    set_digits(&mut text[11..13], at.hour().into());
    set_digits(&mut text[14..16], at.minute().into());
    set_digits(&mut text[17..19], at.second().into());
    let nanoseconds = at.subsec_nanosecond();
    let mut end = 19;
    if nanoseconds != 0 {
        set_digits(&mut text[20..29], nanoseconds);
        end = 29;
        while text[end - 1] == b'0' {
            end -= 1;
        }
    }
    text[end] = b'Z';
    out.extend_from_slice(&text[..=end]);
}

/// Writes a number over zeros.
fn set_digits(zeros: &mut [u8], mut number: i32) {
    for digit in zeros.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
}

/// Parses nothing, or a point and up to nine digits.
fn nanoseconds(fraction: &str) -> Option<i32> {
    if fraction.is_empty() {
        return Some(0);
    }
    let digits = fraction.strip_prefix('.')?;
    let missing = u32::try_from(9_usize.checked_sub(digits.len())?).ok()?;
    match missing {
        9 => None,
        _ => Some(number(digits.as_bytes())? * 10_i32.pow(missing)),
    }
}

/// Parses up to nine digits.
fn number(digits: &[u8]) -> Option<i32> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i32::from(digit - b'0'))?;
        Some(10 * number + digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_exactly_32_digits() {
        let whole = format!("{:032x}", u128::MAX / 3);
        assert_eq!(hex(&whole), Some(u128::MAX / 3));
        for other in [
            &whole[..21],
            &format!("+{}", &whole[1..]),
            &format!("{whole}\n"),
            &format!(" {}", &whole[1..]),
            &format!("{whole}0"),
            &"g".repeat(32),
            "",
        ] {
            assert_eq!(hex(other), None, "{other:?}");
        }
    }

    #[test]
    fn only_text_that_comes_back_is_let_through() {
        for body in ["", " ", "a\n\tb", "東京 🦀 \u{7f}\u{85}"] {
            assert_eq!(xml_text(body.as_bytes()), Ok(body));
        }
        assert_eq!(xml_text(b"a\xff"), Err(NotXmlText::NotUtf8 { at: 1 }));
        for (body, character, at) in [
            ("a\0", '\0', 1),
            ("\u{1}", '\u{1}', 0),
            ("ä\r\n", '\r', 2),
            ("\u{ffff}", '\u{ffff}', 0),
        ] {
            let problem = NotXmlText::Character { character, at };
            assert_eq!(xml_text(body.as_bytes()), Err(problem), "{body:?}");
        }
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        let written = [
            "-000001-12-31T00:00:00Z",
            "0000-01-01T00:00:00Z",
            "1969-12-31T23:59:59.999999999Z",
            "1970-01-01T00:00:00Z",
            "2024-02-29T12:34:56.7Z",
            "2026-11-22T13:51:53.123456789Z",
            "2026-11-22T13:51:53.000000001Z",
            "9999-12-30T22:00:00.999999999Z",
        ];
        for text in written {
            let time: Timestamp = text.parse().expect("valid");
            assert_eq!(time.to_string(), text);
            let mut written = Vec::new();
            write_time(&mut written, time);
            assert_eq!(String::from_utf8_lossy(&written), text);
            let parsed = parse_time(text);
            assert_eq!(parsed, (!text.starts_with('-')).then_some(time), "{text}");
        }
    }

    #[test]
    fn other_forms_are_left_to_others() {
        for text in [
            "",
            "Z",
            "2026-11-22T13:51:53",
            "2026-11-22t13:51:53z",
            "2026-11-22 13:51:53Z",
            "2026-11-22T13:51:53+00:00",
            "2026-11-22T13:51:53.Z",
            "2026-11-22T13:51:53,5Z",
            "2026-11-22T13:51:53.1234567890Z",
            "2026-11-22T13:51:53.-1Z",
            "2026-11-22T13:51:60Z",
            "2026-11-22T24:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-22T13:51:5äZ",
            "2026-11-22T+3:51:53Z",
            "9999-12-31T00:00:00Z",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
