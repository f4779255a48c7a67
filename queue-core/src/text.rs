//! The text of attributes, keys and errors.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

pub use queue_names::is_forbidden;

/// Returns canonical JSON: without white space, members sorted by name, and characters that CloudEvents
/// forbids escaped. Equal values have equal text, and the text is valid in a CloudEvents attribute.
#[must_use]
pub fn canonical(mut value: Value) -> String {
    // Members are sorted already, unless another crate of the program enables `preserve_order`.
    value.sort_all_objects();
    escape_json(&value.to_string())
}

/// Escapes the characters of JSON that CloudEvents forbids in attributes. In JSON, only strings hold characters that
/// need an escape.
#[must_use]
pub fn escape_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if !is_forbidden(c) {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(text, "\\u{unit:04x}").expect("a String takes any text");
        }
    }
    text
}

/// Escapes the characters that CloudEvents forbids in attributes.
#[must_use]
pub fn escape_text(text: &str) -> Cow<'_, str> {
    if !has_forbidden(text) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_forbidden(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// Whether a name begins or ends with characters that a mistake leaves there, or contains characters that nobody types:
/// a carriage return of an environment file, a space, a quote that no shell has removed.
#[must_use]
pub fn has_stray_ends(text: &str) -> bool {
    let is_stray = |c: char| {
        c.is_whitespace() || "\"'`\u{201c}\u{201d}\u{2018}\u{2019}\u{200b}\u{feff}".contains(c)
    };
    text.starts_with(is_stray) || text.ends_with(is_stray) || text.contains(char::is_control)
}

/// Whether the text contains a character that CloudEvents forbids in attributes.
#[must_use]
pub(crate) fn has_forbidden(text: &str) -> bool {
    let is_printable_ascii = all_bytes(text, |byte| matches!(byte, b' '..=b'~'));
    !is_printable_ascii && text.chars().any(is_forbidden)
}

/// Whether all bytes satisfy a condition. Looks at eight bytes at a time, at the last eight perhaps again: for
/// conditions that most text satisfies.
pub(crate) fn all_bytes(text: &str, condition: impl Fn(u8) -> bool) -> bool {
    let all = |bytes: &[u8]| bytes.iter().fold(true, |all, &byte| all & condition(byte));
    let bytes = text.as_bytes();
    match bytes.last_chunk::<8>() {
        Some(last) => bytes.as_chunks::<8>().0.iter().all(|eight| all(eight)) && all(last),
        None => all(bytes),
    }
}

/// The longest text of an error, with its causes, in bytes.
pub const MAX_ERROR: usize = 8 * 1024;

/// The longest text of the application's in a line of a log, in bytes.
pub const MAX_LOGGED: usize = 1024;

/// Stands in place of the rest of a text.
const CUT: &str = "…";

/// The longest escape, in bytes: that of the last character in Rust.
const LONGEST_ESCAPE: usize = r"\u{10ffff}".len();

/// Returns the longest prefix of at most `max` bytes that ends neither within a character nor within an escape of
/// Rust's or JSON's.
#[must_use]
pub(crate) fn clip(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = boundary(text, max);
    let is_cut =
        |&at: &usize| text.as_bytes()[at] == b'\\' && at + escape_length(&text[at..]) > end;
    let escape = (end.saturating_sub(LONGEST_ESCAPE)..end).find(is_cut);
    match escape {
        Some(at) => text[..at].trim_end_matches('\\'),
        None => &text[..end],
    }
}

/// Returns the last boundary of characters within `max` bytes.
fn boundary(text: &str, max: usize) -> usize {
    let mut ends = (0..=max.min(text.len())).rev();
    ends.find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the length of the escape that a text begins with.
fn escape_length(text: &str) -> usize {
    match text.as_bytes() {
        [_, b'u', b'{', rest @ ..] => {
            let mut rest = rest.iter().take(LONGEST_ESCAPE);
            rest.position(|byte| *byte == b'}').map_or(2, |end| end + 4)
        }
        [_, b'u', ..] => 6,
        _ => 2,
    }
}

/// Returns the text as it is with at most `max` bytes, or its beginning if it is longer, as `clip` cuts it.
#[must_use]
pub fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    match max.checked_sub(CUT.len()) {
        Some(max) => Cow::Owned(format!("{}{CUT}", clip(text, max))),
        None => Cow::Borrowed(""),
    }
}

/// Returns what [`shorten`] makes of the text that [`escape_text`] returns.
#[must_use]
pub fn escape_short(text: &str, max: usize) -> Cow<'_, str> {
    // An escape is longer than its character, so that the rest of a longer text is never needed. One character more tells
    // that there is a rest.
    let start = boundary(text, max.saturating_add(4));
    match escape_text(&text[..start]) {
        Cow::Borrowed(text) => shorten(text, max),
        Cow::Owned(escaped) => Cow::Owned(shorten(&escaped, max).into_owned()),
    }
}

/// Returns an error and its causes as one text of at most [`MAX_ERROR`] bytes, outermost first.
#[must_use]
pub fn error_chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause.filter(|_| text.len() <= MAX_ERROR) {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    match shorten(&text, MAX_ERROR) {
        Cow::Borrowed(_) => text,
        Cow::Owned(short) => short,
    }
}

/// Implements `Debug` of errors as their text and their causes, because `?` in `main` prints that.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($error:ty $(, $generic:ident $(: $bound:path)?)*) => {
        impl<$($generic $(: $bound)?),*> ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&$crate::internal::error_chain(self))
            }
        }
    };
}

/// Implements `Display`, `Error` and `Debug` for an error whose text ends with that of its cause, the named field. The
/// error's source is the source of its cause. The last argument is the error's `outcome`, if it has one.
#[doc(hidden)]
#[macro_export]
macro_rules! error_around {
    (
        $cause:ident in $error:ty $(, $generic:ident $(: $bound:path)?)*;
        |$this:ident, $f:ident| $text:expr
    ) => {
        $crate::debug_as_text!($error $(, $generic $(: $bound)?)*);

        impl<$($generic $(: $bound)?),*> ::std::fmt::Display for $error {
            fn fmt(&self, $f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $this = self;
                $text
            }
        }

        impl<$($generic $(: $bound)?),*> ::std::error::Error for $error {
            fn source(&self) -> Option<&(dyn ::std::error::Error + 'static)> {
                ::std::error::Error::source(&self.$cause)
            }
        }
    };
    (
        $cause:ident in $error:ty $(, $generic:ident $(: $bound:path)?)*;
        |$this:ident, $f:ident| $text:expr;
        $(#[$doc:meta])+
        outcome: $outcome:expr
    ) => {
        $crate::error_around!(
            $cause in $error $(, $generic $(: $bound)?)*;
            |$this, $f| $text
        );

        impl<$($generic),*> $error {
            $(#[$doc])+
            #[must_use]
            pub fn outcome(&self) -> $crate::Outcome {
                let $this = self;
                $outcome
            }
        }
    };
}

/// Whether two strings are equal, at compile time.
#[must_use]
pub const fn str_eq(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Parses a duration as a person writes it: in an attribute of the derive, which has the same parser, in a queue's
/// metadata, a URL, or on the command line.
///
/// # Errors
/// The error quotes the text, and says what is wrong with it and what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|problem| {
        format!(
            "{text:?} is not a duration: {problem}; allowed are `500ms`, `30s`, `5m`, `2h`, `7d`, and sums such as `1h30m`"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_values_have_equal_texts() {
        let one = json!(["k", {"b": 1, "a": [true, null]}]);
        let other = json!(["k", {"a": [true, null], "b": 1}]);
        assert_eq!(canonical(one.clone()), canonical(other));
        assert_eq!(canonical(one.clone()), r#"["k",{"a":[true,null],"b":1}]"#);
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(
            canonical(json!(["a", "b,c"])),
            canonical(json!(["a,b", "c"]))
        );
        assert_ne!(canonical(json!(["1"])), canonical(json!([1])));
    }

    #[test]
    fn a_byte_that_differs_is_found_wherever_it_is() {
        let is_x = |byte| byte == b'x';
        for length in 0..=25 {
            let alike = "x".repeat(length);
            assert!(all_bytes(&alike, is_x));
            for at in 0..length {
                let mut other = alike.clone();
                other.replace_range(at..=at, "y");
                assert!(!all_bytes(&other, is_x), "{other}");
            }
        }
    }

    #[test]
    fn a_cut_ends_within_no_character_and_no_escape() {
        for whole in [
            "\u{85}",
            "\n",
            "ü",
            "\u{10ffff}",
            "x",
            r"\\",
            r"\u00fc",
            r"\u{x",
        ] {
            let escaped = escape_text(whole);
            let text = format!("{escaped}{escaped}");
            let parts = ["", &*escaped];
            for max in 0..text.len() {
                let clipped = clip(&text, max);
                // An unfinished escape is text.
                let is_whole = parts.contains(&clipped) || whole.ends_with('x');
                assert!(clipped.len() <= max && is_whole, "{clipped:?} of {text:?}");
            }
            assert_eq!(clip(&text, text.len()), text);
            for max in 3..40 {
                let long = whole.repeat(50);
                let short = escape_short(&long, max);
                let is_cut = short.strip_suffix(CUT).expect("it tells that it is cut");
                assert!(short.len() <= max, "{short:?}");
                assert!(escape_text(&long).starts_with(is_cut), "{short:?}");
            }
        }
        assert_eq!(escape_short("a\nb", 4), r"a\nb");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Long {
        text: String,
        source: Option<Box<Self>>,
    }

    #[test]
    fn the_text_of_an_error_is_bounded() {
        let long = |text: &str, source| Long {
            text: text.repeat(1_000_000),
            source,
        };
        for text in ["x", "ü", "\n"] {
            let chain = error_chain(&long(text, Some(Box::new(long("y", None)))));
            let kept = chain.strip_suffix(CUT).expect("it tells that it is cut");
            assert!(chain.len() <= MAX_ERROR && chain.len() > MAX_ERROR - 4);
            assert!(kept.chars().all(|c| text.contains(c)), "{chain}");
        }
        let short = Long {
            text: "a".to_owned(),
            source: Some(Box::new(long("b", None))),
        };
        assert!(error_chain(&short).starts_with("a: bbb"));
    }

    #[test]
    fn forbidden_characters_are_escaped_as_json_escapes_them() {
        let value = json!(["\u{1}\u{85}\u{ffff}\u{1fffe}"]);
        let text = canonical(value.clone());
        assert_eq!(text, r#"["\u0001\u0085\uffff\ud83f\udffe"]"#);
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, value);
    }
}
