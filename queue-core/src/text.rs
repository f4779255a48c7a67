//! The text of attributes, keys and errors.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt::Write as _;

use serde_json::Value;

/// Returns canonical JSON: without white space, members sorted by name, and characters that CloudEvents
/// forbids escaped. Equal values have equal text, and the text is valid in a CloudEvents attribute.
#[must_use]
pub fn canonical(mut value: Value) -> String {
    // They are sorted already, unless another crate of the program enables `preserve_order`.
    value.sort_all_objects();
    let mut text = String::new();
    // Only strings hold characters that need an escape.
    for c in value.to_string().chars() {
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

/// Whether a text that names something begins or ends with what a mistake leaves there, or contains what nobody types: a
/// carriage return of an environment file, a space, the quote of a shell that was none.
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

/// Whether all bytes satisfy a condition. Looks at eight at a time, at the last eight perhaps again: for conditions that
/// most text satisfies.
pub(crate) fn all_bytes(text: &str, condition: impl Fn(u8) -> bool) -> bool {
    let all = |bytes: &[u8]| bytes.iter().fold(true, |all, &byte| all & condition(byte));
    let bytes = text.as_bytes();
    match bytes.last_chunk::<8>() {
        Some(last) => bytes.as_chunks::<8>().0.iter().all(|eight| all(eight)) && all(last),
        None => all(bytes),
    }
}

/// Whether CloudEvents forbids the character in attributes.
#[must_use]
pub fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    c.is_control() || (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

/// Returns the longest prefix of at most `max` bytes.
#[must_use]
pub fn clip(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// Returns an error and its causes as one text, outermost first.
#[must_use]
pub fn error_chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Implements `Debug` of errors as their text and their causes, because `?` in `main` prints that.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_text {
    ($error:ty $(, $generic:ident)*) => {
        impl<$($generic),*> ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&$crate::internal::error_chain(self))
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
    fn forbidden_characters_are_escaped_as_json_escapes_them() {
        let value = json!(["\u{1}\u{85}\u{ffff}\u{1fffe}"]);
        let text = canonical(value.clone());
        assert_eq!(text, r#"["\u0001\u0085\uffff\ud83f\udffe"]"#);
        let read: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read, value);
    }
}
