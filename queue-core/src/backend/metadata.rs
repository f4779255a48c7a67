use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::text::escape_text;

/// What is percent-encoded in free text, besides characters that are not ASCII.
const TEXT: &AsciiSet = &CONTROLS.add(b'%');

/// A queue's metadata: names and values, by the rules of Azure Queue Storage.
///
/// Names are ASCII identifiers. They are case-insensitive and stored in lower case. Values are visible
/// ASCII characters and spaces between them.
///
/// ```
/// use queue_core::backend::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("PoisonThreshold", "5")?;
/// assert_eq!(metadata.find("poisonthreshold"), Some("5"));
/// assert!(metadata.insert("poison-threshold", "5").is_err());
/// # Ok::<(), queue_core::backend::InvalidMetadata>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Metadata(BTreeMap<String, String>);

/// An invalid metadata name or value.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMetadata {
    /// The name is not an identifier.
    #[error(
        "invalid metadata name {0:?}; allowed are ASCII letters, digits and underscores, not \
         starting with a digit"
    )]
    Name(String),
    /// The value cannot be sent in a header.
    #[error(
        "invalid value {value:?} of metadata {name:?}; allowed are visible ASCII \
         characters and spaces between them"
    )]
    Value {
        /// The name.
        name: String,
        /// The value.
        value: String,
    },
}

crate::debug_as_text!(InvalidMetadata);

impl Metadata {
    /// Creates empty metadata.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a value, replacing one of the same name.
    ///
    /// # Errors
    /// [`InvalidMetadata`] if the name or the value is invalid.
    pub fn insert(&mut self, name: &str, value: &str) -> Result<(), InvalidMetadata> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty()
            || !name.chars().all(word)
            || name.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(InvalidMetadata::Name(name.to_owned()));
        }
        if value.trim() != value || !value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
            return Err(InvalidMetadata::Value {
                name: name.to_owned(),
                value: value.to_owned(),
            });
        }
        self.0.insert(name.to_ascii_lowercase(), value.to_owned());
        Ok(())
    }

    /// Sets free text of any language, such as a reason: percent-encoded as far as a value cannot hold it. White space at its
    /// ends is left out.
    ///
    /// ```
    /// use queue_core::backend::Metadata;
    ///
    /// let mut metadata = Metadata::new();
    /// metadata.insert_text("note", "Störung, 50 %")?;
    /// assert_eq!(metadata.find("note"), Some("St%C3%B6rung, 50 %25"));
    /// assert_eq!(metadata.text("note").as_deref(), Some("Störung, 50 %"));
    /// # Ok::<(), queue_core::backend::InvalidMetadata>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidMetadata`] if the name is invalid.
    pub fn insert_text(&mut self, name: &str, text: &str) -> Result<(), InvalidMetadata> {
        let encoded = utf8_percent_encode(text.trim(), TEXT).to_string();
        self.insert(name, &encoded)
    }

    /// Returns the free text of a name as [`insert_text`](Self::insert_text) was given it, with control characters escaped.
    /// A value that another program has set is returned as it is, unless it is percent-encoded too.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        let value = self.find(name)?;
        let text = percent_decode_str(value).decode_utf8();
        Some(text.map_or_else(|_| value.to_owned(), |text| escape_text(&text).into_owned()))
    }

    /// Returns the value of a name, ignoring case.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// Removes a value and returns it.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(&name.to_ascii_lowercase())
    }

    /// Returns the total length of names and values, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// Whether the metadata is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}
