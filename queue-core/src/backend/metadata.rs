use std::collections::BTreeMap;

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
