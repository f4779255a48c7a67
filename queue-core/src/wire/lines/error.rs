use std::fmt::Display;

use serde::{de, ser};

use super::ALLOWED;
use crate::message::without_values;

/// An error of a message in [lines](crate::Wire::Lines). It tells which field is wrong and what was expected, and only
/// the shape of the value, so it may be logged.
///
/// ```
/// use queue_core::wire::Lines;
///
/// let error = Lines::read(b"http://old.example/slices\nclient-7").unwrap_err();
/// assert!(error.to_string().starts_with("the request id is missing"));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LinesError {
    text: String,
    /// Whether the text says where the error is.
    is_placed: bool,
}

crate::debug_as_text!(LinesError);

impl LinesError {
    /// An error whose place is added by whoever knows it.
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self {
            text: problem.into(),
            is_placed: false,
        }
    }

    /// An error of the body as a whole.
    pub(super) fn of_body(problem: impl Into<String>) -> Self {
        Self {
            text: problem.into(),
            is_placed: true,
        }
    }

    pub(super) fn expected(what: &str) -> Self {
        Self::new(format!("expected {what}"))
    }

    /// The error of a value that has no line.
    pub(super) fn no_line(what: &str) -> Self {
        Self::new(format!(
            "{what} does not fit on a line; allowed are {ALLOWED}"
        ))
    }

    /// The error of a message that is not a struct of fields.
    pub(super) fn no_fields(what: &str) -> Self {
        Self::of_body(format!(
            "the message is {what}; it has to be a struct whose fields are {ALLOWED}"
        ))
    }

    pub(super) fn of_field(self, place: impl Display) -> Self {
        if self.is_placed {
            return self;
        }
        Self::of_body(format!("{place}: {}", self.text))
    }

    pub(super) fn on_line(self, place: impl Display, value: &str) -> Self {
        if self.is_placed {
            return self;
        }
        Self::of_body(format!("{place}: {}, found {}", self.text, shape(value)))
    }
}

impl de::Error for LinesError {
    fn custom<T: Display>(problem: T) -> Self {
        Self::new(without_values(&problem.to_string()))
    }
}

impl ser::Error for LinesError {
    fn custom<T: Display>(problem: T) -> Self {
        Self::new(problem.to_string())
    }
}

/// Describes a value without quoting it.
fn shape(value: &str) -> String {
    let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
    if value.is_empty() {
        "an empty line".to_owned()
    } else if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("an integer of length {}", value.len())
    } else if value.parse::<f64>().is_ok_and(f64::is_finite) {
        "a decimal number".to_owned()
    } else {
        format!("text of length {}", value.chars().count())
    }
}
