//! Text from queues, made safe for a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// What a storage does not tell, never shown as 0.
pub(crate) const NOT_KNOWN: &str = "not known here";

/// The greatest depth that is indented: the size of the text stays in proportion to that of the JSON.
const DEEPEST: usize = 16;

/// Escapes what a terminal may take for a command or show as something else: control characters, format characters such
/// as those that turn the direction of text, and marks that change the character before them.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => escaped.push(c),
            c => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

/// Escapes in JSON what [`escape`] escapes, which is only inside strings.
pub(crate) fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() && c != '\u{7f}' || c.escape_debug().len() == 1 {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(escaped, "\\u{unit:04x}").expect("a string can be written");
        }
    }
    escaped
}

/// Returns JSON with line breaks and indents. All else stays as it is: numbers of any length, and the order of members.
pub(crate) fn indented(json: &str) -> String {
    let (mut indented, mut depth) = (String::with_capacity(json.len() * 2), 0_usize);
    let (mut in_string, mut is_escaped) = (false, false);
    let mut all = json.chars().peekable();
    let new_line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth.min(DEEPEST)));
    };
    while let Some(c) = all.next() {
        if in_string {
            indented.push(c);
            (in_string, is_escaped) = (c != '"' || is_escaped, c == '\\' && !is_escaped);
            continue;
        }
        match c {
            c if c.is_ascii_whitespace() => {}
            '{' | '[' => {
                indented.push(c);
                while all.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = all.next_if(|c| "}]".contains(*c)) {
                    indented.push(end);
                } else {
                    depth += 1;
                    new_line(&mut indented, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut indented, depth);
                indented.push(c);
            }
            ',' => {
                indented.push(c);
                new_line(&mut indented, depth);
            }
            ':' => indented.push_str(": "),
            c => {
                in_string = c == '"';
                indented.push(c);
            }
        }
    }
    indented
}

/// Returns the text, cut to this many columns of a terminal.
pub(crate) fn clip(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 1; // For the sign that something is missing.
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    let mut clipped: String = text.chars().take_while(fits).collect();
    clipped.push('…');
    clipped
}

/// Returns a duration in its two largest units, such as `3h 5m`.
pub(crate) fn age(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let whole = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Returns a number and its noun: `1 message`, `1,024 messages`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// Returns a number with its digits in groups of three.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}gnp.exe\u{200b}\r\ne\u{301}\u{e0041}";

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let escaped = escape(HOSTILE);
        let left = |c: char| c.escape_debug().len() > 1 && !"'\"\\".contains(c);
        assert!(!escaped.contains(left), "{escaped}");
        assert!(escaped.starts_with(r"\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}gnp"));
        assert_eq!(escape("Grüße, \"世界\" \\o/"), "Grüße, \"世界\" \\o/");
    }

    #[test]
    fn escaped_json_means_the_same() {
        let json = serde_json::to_string(&[HOSTILE, "Grüße"]).expect("JSON");
        let escaped = escape_json(&json);
        let left = |c: char| c.escape_debug().len() > 1 && !"'\"\\".contains(c);
        assert!(!escaped.contains(left), "{escaped}");
        let read: Vec<String> = serde_json::from_str(&escaped).expect("still JSON");
        assert_eq!(read, [HOSTILE, "Grüße"]);
        assert!(escaped.contains("Grüße"));
    }

    #[test]
    fn indented_json_keeps_its_numbers_and_the_order_of_its_members() {
        let json = r#"{"b":[ 340282366920938463463374607431768211455 , 1.00],"a":{ },"s":"{\"x\":[1,2]}\\"}"#;
        let expected = "{\n  \"b\": [\n    340282366920938463463374607431768211455,\n    1.00\n  ],\n  \"a\": {},\n  \
             \"s\": \"{\\\"x\\\":[1,2]}\\\\\"\n}";
        assert_eq!(indented(json), expected);
        let deep = "[".repeat(10_000) + "1" + &"]".repeat(10_000);
        assert!(indented(&deep).len() < 100 * deep.len());
    }

    #[test]
    fn text_is_cut_by_the_columns_that_it_takes() {
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("longer", 5), "long…");
        assert_eq!(clip("世界世界", 5), "世界…");
    }

    #[test]
    fn numbers_and_durations_are_for_people() {
        assert_eq!(count(1, "message"), "1 message");
        assert_eq!(count(1_024_000, "message"), "1,024,000 messages");
        assert_eq!(age(Duration::from_secs(3 * 3600 + 5 * 60 + 7)), "3h 5m");
        assert_eq!(age(Duration::from_millis(250)), "250ms");
    }
}
