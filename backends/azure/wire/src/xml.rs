//! Small trees of XML, parsed leniently for text of foreign clients; the body of a message; dates.

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use quick_xml::Reader;
use quick_xml::escape::{partial_escape, resolve_predefined_entity};
use quick_xml::events::{BytesRef, BytesStart, Event};

/// An element.
#[derive(Debug, PartialEq)]
pub struct Element<'a> {
    tag: BytesStart<'a>,
    /// The text in the element, with its line ends unchanged.
    pub text: Cow<'a, str>,
    /// The elements in the element.
    pub children: Vec<Element<'a>>,
}

/// The maximum depth, more than that of any body.
const MAX_DEPTH: usize = 8;

/// The maximum number of elements, more than in any body: the largest is a list of 5,000 queues.
const MAX_ELEMENTS: usize = 50_000;

impl<'a> Element<'a> {
    /// Reads a body. `None` if it is not the XML of one: if it has entities of its own, for example.
    #[must_use]
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
        let text = std::str::from_utf8(body).ok()?;
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        // End tags are checked below, against names kept anyway.
        reader.config_mut().check_end_names = false;
        let mut open: Vec<Self> = Vec::new();
        let mut elements = 0;
        loop {
            match reader.read_event().ok()? {
                Event::Start(_) if open.len() == MAX_DEPTH || elements == MAX_ELEMENTS => {
                    return None;
                }
                Event::Start(tag) => {
                    elements += 1;
                    open.push(Self {
                        tag,
                        text: Cow::Borrowed(""),
                        children: Vec::new(),
                    });
                }
                Event::End(end) => {
                    let closed = open.pop()?;
                    if closed.tag.name() != end.name() {
                        return None;
                    }
                    match open.last_mut() {
                        Some(parent) => parent.children.push(closed),
                        None => return Some(closed),
                    }
                }
                Event::Text(text) => append(&mut open, text.decode().ok()?),
                Event::CData(text) => append(&mut open, text.decode().ok()?),
                Event::GeneralRef(reference) => append(&mut open, resolve(&reference)?.into()),
                Event::DocType(_) | Event::Eof => return None,
                _ => {}
            }
        }
    }

    /// Returns the element's name.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.tag.name().into_inner()).into_owned()
    }

    /// Whether the element has this name.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.tag.name().into_inner() == name.as_bytes()
    }

    /// Returns the first element of this name in the element.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.is(name))
    }
}

fn append<'a>(open: &mut [Element<'a>], text: Cow<'a, str>) {
    if let Some(element) = open.last_mut() {
        element.text += text;
    }
}

/// Returns the text of a reference. References that XML does not allow are resolved too: a message of a
/// foreign client must not make the other messages of a reply unreadable.
fn resolve(reference: &BytesRef<'_>) -> Option<String> {
    let name = reference.decode().ok()?;
    let number = match name.strip_prefix('#') {
        Some(digits) => match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        },
        None => None,
    };
    Some(match (number.and_then(char::from_u32), &*name) {
        (Some(character), _) => character.to_string(),
        (None, name) => match resolve_predefined_entity(name) {
            Some(text) => text.to_owned(),
            None => format!("&{name};"),
        },
    })
}

/// Returns the body of a put or update.
#[must_use]
pub fn message(text: &str) -> Vec<u8> {
    let mut body = String::with_capacity(text.len() + 120);
    body.push_str("<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessage><MessageText>");
    // Base64 needs no escapes. A fold without an early exit is vectorized.
    let escaped = |byte: u8| matches!(byte, b'&' | b'<' | b'>');
    if text.bytes().fold(false, |any, byte| any | escaped(byte)) {
        body.push_str(&partial_escape(text))
    } else {
        body.push_str(text)
    }
    body.push_str("</MessageText></QueueMessage>");
    body.into_bytes()
}

/// Whether XML can carry all characters of a text, with [escapes](escaped).
#[must_use]
pub fn can_carry(text: &str) -> bool {
    let is_allowed = |c: char| match c {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        c => c >= ' ',
    };
    text.chars().all(is_allowed)
}

/// Returns the text with the escapes that it needs between tags. A carriage return would be read as a line feed.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    let escaped = partial_escape(text);
    if escaped.contains('\r') {
        return Cow::Owned(escaped.replace('\r', "&#xD;"));
    }
    escaped
}

/// Reads a date, as in headers and messages.
#[must_use]
pub fn http_date(text: &str) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new();
    PARSER.parse_timestamp(text).ok()
}

/// Writes a date. The year of one without end is 9999.
#[must_use]
pub fn to_http_date(at: Timestamp) -> String {
    static PRINTER: DateTimePrinter = DateTimePrinter::new();
    let date = PRINTER.timestamp_to_rfc9110_string(&at);
    date.unwrap_or_else(|_| NEVER.to_owned())
}

/// The date of what has no end.
pub const NEVER: &str = "Fri, 31 Dec 9999 23:59:59 GMT";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_text_is_read_unchanged() {
        for text in ["", " ", "a\nb\t ", "<a href=\"x\">&amp;</a> ]]> 東京 🦀"] {
            let body = message(text);
            let root = Element::parse(&body).expect("well-formed");
            assert!(root.is("QueueMessage"));
            assert_eq!(root.child("MessageText").expect("a text").text, text);
        }
    }

    #[test]
    fn foreign_text_is_parsed_leniently() {
        let read = |body: &str| Element::parse(body.as_bytes()).map(|root| root.text.into_owned());
        assert_eq!(
            read("\u{feff}<a>x&#1;&#x2;&#xD;y</a>").as_deref(),
            Some("x\u{1}\u{2}\ry")
        );
        assert_eq!(
            read("<a>&nbsp;&#xFFFFFFFF;</a>").as_deref(),
            Some("&nbsp;&#xFFFFFFFF;")
        );
        assert_eq!(
            read("<a>\u{1}\r\n<![CDATA[<b>]]></a>").as_deref(),
            Some("\u{1}\r\n<b>")
        );
    }

    /// Each element takes many times the memory of its text, so their number is limited, not only the length.
    #[test]
    fn too_many_elements_are_rejected() {
        let list = |children| format!("<a>{}</a>", "<b/>".repeat(children));
        let most = list(MAX_ELEMENTS - 1);
        let root = Element::parse(most.as_bytes()).expect("allowed");
        assert_eq!(root.children.len(), MAX_ELEMENTS - 1);
        for children in [MAX_ELEMENTS, 4 * 1024 * 1024] {
            let more = list(children);
            assert_eq!(Element::parse(more.as_bytes()), None);
        }
    }

    #[test]
    fn other_bodies_are_rejected() {
        let deep = format!("{}{}", "<a>".repeat(9), "</a>".repeat(9));
        for body in [
            "",
            "not XML",
            "{\"error\":1}",
            "<a>",
            "<a></b>",
            "<a><b></a>",
            "<!DOCTYPE a [<!ENTITY e \"x\">]><a>&e;</a>",
            deep.as_str(),
        ] {
            assert_eq!(Element::parse(body.as_bytes()), None, "{body}");
        }
        assert_eq!(Element::parse(b"<a>\xff</a>"), None);
    }

    #[test]
    fn dates_are_read_as_they_were_written() {
        let text = "Sun, 29 Nov 2026 10:30:05 GMT";
        let at = http_date(text).expect("a date");
        assert_eq!(to_http_date(at), text);
        assert_eq!(http_date("tomorrow"), None);
        assert_eq!(to_http_date(Timestamp::MIN), NEVER);
    }

    #[test]
    fn line_ends_survive() {
        let text = escaped("a\r\n<b>");
        assert_eq!(text, "a&#xD;\n&lt;b&gt;");
        let body = format!("<a>{text}</a>");
        let read = Element::parse(body.as_bytes()).expect("well-formed");
        assert_eq!(read.text, "a\r\n<b>");
    }
}
