use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a JSON object in order, with raw values.
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads a JSON object.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::with_capacity(16);
        while let Some((Name(name), value)) = map.next_entry()? {
            members.push((name, value));
        }
        let names = members.iter().map(|(name, _)| Cow::Borrowed(&**name));
        if let Some(name) = repeated(names.collect()) {
            return Err(A::Error::custom(format_args!(
                "member {name:?} stands twice"
            )));
        }
        Ok(Members(members))
    }
}

/// Borrows where the text has no escapes.
#[derive(serde::Deserialize)]
pub(super) struct Name<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Returns a name that is there more than once.
pub(super) fn repeated(mut names: Vec<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    names.sort_unstable();
    let at = names.windows(2).position(|pair| pair[0] == pair[1])?;
    Some(names.swap_remove(at))
}
