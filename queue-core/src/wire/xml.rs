use crate::text::all_bytes;

/// Why XML cannot carry a body unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotXmlText {
    /// It is not UTF-8.
    #[error("the body is not UTF-8 at byte {at}")]
    NotUtf8 {
        /// The offset of the first byte that is not.
        at: usize,
    },
    /// It contains a character that XML forbids or changes.
    #[error("the body contains {character:?} at byte {at}, which XML cannot carry")]
    Character {
        /// The first such character.
        character: char,
        /// Its byte offset.
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
    // Most bodies hold nothing else.
    if all_bytes(text, |byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n')) {
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
        Some((at, character)) => Err(NotXmlText::Character { character, at }),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
