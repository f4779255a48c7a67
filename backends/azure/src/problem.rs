use std::fmt;

/// What is wrong with a connection string or URL. It never repeats the text, which may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem(String);

impl Problem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
