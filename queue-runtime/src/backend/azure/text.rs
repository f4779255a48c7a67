//! Which bodies survive the service's XML.

use std::time::Duration;

/// The body as text, or why the service would refuse or change it.
pub(super) fn checked(body: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(body).map_err(|error| {
        format!(
            "the body is not UTF-8 at byte {}; {ADVICE}",
            error.valid_up_to()
        )
    })?;
    if !contains(text, |byte| !matches!(byte, b' '..=b'~' | b'\t' | b'\n')) {
        return Ok(text);
    }
    let unfit = |c: char| match c {
        '\t' | '\n' => false,
        // XML turns it into a line feed.
        '\r' => true,
        '\u{fffe}' | '\u{ffff}' => true,
        c => c < ' ',
    };
    match text.char_indices().find(|(_, c)| unfit(*c)) {
        Some((at, c)) => Err(format!(
            "the body holds {c:?} at byte {at}, which XML does not carry; {ADVICE}"
        )),
        None => Ok(text),
    }
}

/// Whether a text has such a byte. It is read to its end, many bytes at a time: most have none.
pub(super) fn contains(text: &str, such: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(false, |found, byte| found | such(byte))
}

const ADVICE: &str = "Base64 carries any bytes";

/// A duration in whole seconds, rounded up.
pub(super) fn seconds(duration: Duration) -> i32 {
    let part = u64::from(duration.subsec_nanos() > 0);
    let whole = duration.as_secs().saturating_add(part);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_that_comes_back_is_let_through() {
        for body in ["", " ", "a\n\tb", "東京 🦀 \u{7f}\u{85}"] {
            assert_eq!(checked(body.as_bytes()), Ok(body));
        }
        for body in [
            &b"a\0"[..],
            b"\x01",
            b"a\r\n",
            b"\xff",
            "\u{ffff}".as_bytes(),
        ] {
            let problem = checked(body).expect_err("it is refused");
            assert!(problem.contains("Base64"), "{problem}");
        }
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(seconds(Duration::ZERO), 0);
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(30)), 30);
        assert_eq!(seconds(Duration::MAX), i32::MAX);
    }
}
