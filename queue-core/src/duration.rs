//! Durations in configurations, for `#[serde(with = …)]`: read as in the attributes of a type, `7d`, and shown as `2m 30s`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize as _, Deserializer, de};

use crate::text::parse_duration;

fn read<E: de::Error>(text: &str) -> Result<Duration, E> {
    parse_duration(text).or_else(|problem| {
        // Also `1.5h`, and `PT30S`.
        let duration = text.parse::<SignedDuration>().ok();
        let duration = duration.and_then(|duration| duration.try_into().ok());
        duration.ok_or_else(|| E::custom(problem))
    })
}

pub mod required {
    use super::*;

    pub use jiff::fmt::serde::unsigned_duration::friendly::compact::required::serialize;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        read(&String::deserialize(from)?)
    }
}

pub mod optional {
    use super::*;

    pub use jiff::fmt::serde::unsigned_duration::friendly::compact::optional::serialize;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| read(&text)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use serde_json::{from_str, to_string};

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Configured(#[serde(with = "optional")] Option<Duration>);

    #[test]
    fn a_configuration_has_the_durations_of_attributes_and_what_it_shows_itself() {
        for (text, seconds) in [
            ("1d", 86_400),
            ("1h30m", 5_400),
            ("1m 30s", 90),
            ("1.5h", 5_400),
            ("PT30S", 30),
        ] {
            let read: Configured = from_str(&to_string(text).expect("JSON")).expect(text);
            assert_eq!(read.0, Some(Duration::from_secs(seconds)), "{text}");
            let shown = to_string(&read).expect("JSON");
            let again: Configured = from_str(&shown).expect("read again");
            assert_eq!(again.0, read.0, "{shown}");
        }
        for text in ["-1s", "soon", "30"] {
            let refused = from_str::<Configured>(&to_string(text).expect("JSON"));
            let refused = refused.expect_err(text).to_string();
            assert!(refused.contains("allowed are `500ms`"), "{refused}");
        }
    }
}
