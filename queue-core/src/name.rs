//! Queue names: Azure Queue Storage's rules, on every engine.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The suffix that makes a queue's poison queue, as Azure Functions names it.
pub const POISON_SUFFIX: &str = "-poison";

/// The name of a queue: 3 to 63 characters, lower-case ASCII letters, digits and single dashes, with
/// a letter or digit at both ends.
///
/// ```
/// use queue_core::QueueName;
///
/// let name: QueueName = "slice-request".parse()?;
/// assert_eq!(name.poison()?.as_str(), "slice-request-poison");
/// assert!("Slice--Request".parse::<QueueName>().is_err());
/// # Ok::<(), queue_core::InvalidName>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(Arc<str>);

/// A queue name that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue name {name:?} {problem}; allowed are 3 to 63 lower-case letters, digits and single dashes, with a letter or digit at both ends"
)]
pub struct InvalidName {
    name: String,
    problem: NameProblem,
}

/// The rule that a queue name breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameProblem {
    /// It has this many characters, outside 3 to 63.
    Length(usize),
    /// It holds this character, at this byte position.
    Character(char, usize),
    /// It starts or ends with a dash.
    DashAtEnd,
    /// It has two dashes in a row, at this byte position.
    DoubleDash(usize),
}

impl QueueName {
    /// Takes a name that keeps the rules.
    ///
    /// # Errors
    /// [`InvalidName`] names the rule that `name` breaks.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        match Self::check(name) {
            Ok(()) => Ok(Self(name.into())),
            Err(problem) => Err(InvalidName {
                name: name.to_owned(),
                problem,
            }),
        }
    }

    /// Checks the rules without making a name, as the derive macro does.
    ///
    /// # Errors
    /// The first rule that `name` breaks.
    pub fn check(name: &str) -> Result<(), NameProblem> {
        let length = name.chars().count();
        if !(3..=63).contains(&length) {
            return Err(NameProblem::Length(length));
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if let Some((at, c)) = name.char_indices().find(|&(_, c)| !allowed(c)) {
            return Err(NameProblem::Character(c, at));
        }
        if name.starts_with('-') || name.ends_with('-') {
            return Err(NameProblem::DashAtEnd);
        }
        match name.find("--") {
            Some(at) => Err(NameProblem::DoubleDash(at)),
            None => Ok(()),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of this queue's poison queue.
    ///
    /// # Errors
    /// [`InvalidName`] if the name is over 56 characters, so that the suffix does not fit.
    pub fn poison(&self) -> Result<Self, InvalidName> {
        Self::new(&format!("{self}{POISON_SUFFIX}"))
    }
}

impl InvalidName {
    /// The rule that the name breaks.
    #[must_use]
    pub fn problem(&self) -> NameProblem {
        self.problem
    }
}

impl FromStr for QueueName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl AsRef<str> for QueueName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Display for NameProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "has {length} characters"),
            Self::Character(c, at) => write!(f, "has {c:?} at byte {at}"),
            Self::DashAtEnd => f.write_str("starts or ends with a dash"),
            Self::DoubleDash(at) => write!(f, "has two dashes in a row at byte {at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_both_edges() {
        let (short, long) = ("abc", "a".repeat(63));
        for good in [short, &long, "0-0", "a1-b2-c3"] {
            assert_eq!(QueueName::check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn each_rule_is_named() {
        let long = "a".repeat(64);
        for (bad, problem) in [
            ("ab", NameProblem::Length(2)),
            ("", NameProblem::Length(0)),
            (&*long, NameProblem::Length(64)),
            ("a_b", NameProblem::Character('_', 1)),
            ("Abc", NameProblem::Character('A', 0)),
            ("abcé", NameProblem::Character('é', 3)),
            ("../x", NameProblem::Character('.', 0)),
            ("-abc", NameProblem::DashAtEnd),
            ("abc-", NameProblem::DashAtEnd),
            ("ab--c", NameProblem::DoubleDash(2)),
        ] {
            assert_eq!(QueueName::check(bad), Err(problem), "{bad}");
        }
    }

    #[test]
    fn a_poison_name_must_fit() {
        assert!(
            QueueName::new(&"a".repeat(56))
                .expect("valid")
                .poison()
                .is_ok()
        );
        assert!(
            QueueName::new(&"a".repeat(57))
                .expect("valid")
                .poison()
                .is_err()
        );
    }
}
