//! JSON that comes back: what is written is what a reader reads.
//!
//! | step | check |
//! |---|---|
//! | [`to_json`] | refuses floats that are not finite, nesting that not every reader accepts, and 128-bit integers that the type cannot read |
//! | [`to_json_and_back`] | refuses values that the type does not read as it writes them |
//! | [`to_json_perhaps_back`] | refuses values that have no JSON at all |
//! | [`check_json`] | refuses JSON, given as text, that no reader accepts |
//!
//! `serde_json` writes NaN by the call that writes `None`, as a null. A value without nulls, 128-bit integers and too
//! deep nesting is by construction read as it is written, so the formatter of [`to_json`] only notes those three; a
//! value with any of them is looked at again.

use std::io;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize};
use serde_json::ser::Formatter;
use serde_json::{Error, Result, Value};

use super::unreadable;

/// The deepest nesting of arrays and objects in a payload. `serde_json` reads 127 levels; the levels beyond this
/// maximum are for what payloads are nested in: events, lines of an export, listings.
pub const MAX_JSON_DEPTH: usize = 120;

/// Serializes a value as JSON.
///
/// # Errors
/// The errors of the type's `Serialize`, and an error that names the field if the JSON certainly cannot be read as what
/// the value is.
pub(crate) fn to_json<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>> {
    // Room for many messages: serde_json begins with 128 bytes, and copies what is longer.
    let (mut json, mut noted) = (Vec::with_capacity(256), Noted::default());
    let written = write(value, &mut json, &mut noted);
    if noted.is_plain() {
        written?;
    } else {
        look_again(value, &noted, written, &json)?;
    }
    Ok(json)
}

/// Serializes a value as JSON, and reads the JSON.
///
/// # Errors
/// The errors of `to_json`, and an error if the type does not read what it writes, or reads another value.
pub fn to_json_and_back<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>> {
    let json = to_json(value)?;
    read_back::<T>(&json, None)?;
    Ok(json)
}

/// Serializes a value as JSON; if the type does not read the JSON as it writes it, returns the JSON with an error.
///
/// # Errors
/// The errors of [`to_json_and_back`], if there is no JSON of the value.
pub fn to_json_perhaps_back<T: Serialize + DeserializeOwned>(
    value: &T,
) -> Result<(Vec<u8>, Option<Error>)> {
    let problem = match to_json_and_back(value) {
        Ok(json) => return Ok((json, None)),
        Err(problem) => problem,
    };
    let mut json = Vec::new();
    match write(value, &mut json, &mut Noted::default()) {
        Ok(()) => Ok((json, Some(problem))),
        Err(_) => Err(problem),
    }
}

/// Checks that every reader accepts a text as JSON: no half of a surrogate pair, no number beyond 64 bits, no more than
/// the 127 levels that `serde_json` reads.
///
/// # Errors
/// What is wrong with the text, with its line and column.
pub fn check_json(json: &[u8]) -> Result<()> {
    serde_json::from_slice::<Readable>(json).map(drop)
}

fn write<T: Serialize>(value: &T, json: &mut Vec<u8>, noted: &mut Noted) -> Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(
        json,
        Noting(noted),
    ))
}

#[cold]
fn look_again<T: Serialize + DeserializeOwned>(
    value: &T,
    noted: &Noted,
    written: Result<()>,
    json: &[u8],
) -> Result<()> {
    let most = if noted.too_deep {
        MAX_JSON_DEPTH
    } else {
        usize::MAX
    };
    let problem = (noted.null || noted.too_deep).then(|| unreadable::find(value, most));
    if let Some(problem) = problem.flatten() {
        return Err(Error::custom(problem));
    }
    written?;
    if noted.wide > 0 {
        read_back::<T>(json, Some(noted.wide)).map_err(|error| {
            Error::custom(format_args!(
                "{error}; it holds 128-bit integers, which cannot be read below `flatten` or in an enum without an outer tag"
            ))
        })?;
    }
    Ok(())
}

/// Checks that a type reads what it has written, and as many 128-bit integers if their number is known.
fn read_back<T: Serialize + DeserializeOwned>(json: &[u8], wide: Option<u32>) -> Result<()> {
    let back: T = serde_json::from_slice(json).map_err(|error| {
        let error = super::JsonError::new(&error);
        Error::custom(format_args!("the type cannot read what it writes: {error}"))
    })?;
    let (mut again, mut noted) = (Vec::new(), Noted::default());
    write(&back, &mut again, &mut noted)?;
    match difference(json, &again) {
        None if wide.is_none_or(|wide| wide == noted.wide) => Ok(()),
        path => Err(Error::custom(another(&path.unwrap_or_default()))),
    }
}

/// Returns the text of the error for a place that is read as another value.
pub(crate) fn another(path: &str) -> String {
    let place = unreadable::shown(path);
    format!("the type reads another value than it writes at {place}")
}

/// Returns where two payloads differ, apart from the order of members and of items, which a set changes.
pub(crate) fn difference(one: &[u8], other: &[u8]) -> Option<String> {
    let json = serde_json::from_slice::<Value>;
    match (json(one), json(other)) {
        _ if one == other => None,
        (Ok(one), Ok(other)) if sorted(&one) == sorted(&other) => None,
        (Ok(one), Ok(other)) => differences(&one, &other)
            .into_iter()
            .next()
            .map(|(path, _)| path),
        _ => Some(String::new()),
    }
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(sorted).collect();
            items.sort_by_cached_key(Value::to_string);
            Value::Array(items)
        }
        Value::Object(members) => {
            let sorted = |(name, value): (&String, &Value)| (name.clone(), sorted(value));
            Value::Object(members.iter().map(sorted).collect())
        }
        scalar => scalar.clone(),
    }
}

/// A place, and what was there and is there now.
pub(crate) type Difference = (String, String);

/// Returns the differences between two JSON values, by path.
pub(crate) fn differences(committed: &Value, current: &Value) -> Vec<Difference> {
    let mut differences = Vec::new();
    compare("", Some(committed), Some(current), &mut differences);
    differences
}

fn compare(
    path: &str,
    committed: Option<&Value>,
    current: Option<&Value>,
    differences: &mut Vec<Difference>,
) {
    match (committed, current) {
        (Some(Value::Object(committed)), Some(Value::Object(current))) => {
            let added = current.keys().filter(|name| !committed.contains_key(*name));
            for name in committed.keys().chain(added) {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                compare(&path, committed.get(name), current.get(name), differences);
            }
        }
        (Some(Value::Array(committed)), Some(Value::Array(current))) => {
            for at in 0..committed.len().max(current.len()) {
                let path = format!("{path}[{at}]");
                compare(&path, committed.get(at), current.get(at), differences);
            }
        }
        (committed, current) if committed == current => {}
        (committed, current) => {
            let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
            let change = format!("was {}, is now {}", shown(committed), shown(current));
            differences.push((path.to_owned(), change));
        }
    }
}

/// What the formatter has seen.
#[derive(Default)]
struct Noted {
    depth: usize,
    null: bool,
    /// How many integers have 128 bits.
    wide: u32,
    too_deep: bool,
}

impl Noted {
    fn is_plain(&self) -> bool {
        !(self.null | self.too_deep) && self.wide == 0
    }
}

/// Writes as `serde_json` does by itself.
struct Noting<'a>(&'a mut Noted);

impl Noting<'_> {
    fn begin<W: io::Write + ?Sized>(&mut self, writer: &mut W, text: &[u8]) -> io::Result<()> {
        self.0.depth += 1;
        if self.0.depth > MAX_JSON_DEPTH {
            self.0.too_deep = true;
            // Ends the serialization, before a list without an end exhausts the stack.
            return Err(io::ErrorKind::InvalidInput.into());
        }
        writer.write_all(text)
    }

    fn end<W: io::Write + ?Sized>(&mut self, writer: &mut W, text: &[u8]) -> io::Result<()> {
        self.0.depth -= 1;
        writer.write_all(text)
    }
}

impl Formatter for Noting<'_> {
    fn write_null<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.null = true;
        writer.write_all(b"null")
    }

    fn write_i128<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: i128) -> io::Result<()> {
        self.0.wide += 1;
        write!(writer, "{value}")
    }

    fn write_u128<W: io::Write + ?Sized>(&mut self, writer: &mut W, value: u128) -> io::Result<()> {
        self.0.wide += 1;
        write!(writer, "{value}")
    }

    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }
}

/// Reads any JSON, and keeps nothing of it. Unlike `IgnoredAny`, `Readable` has `serde_json` check each string and
/// number.
struct Readable;

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

macro_rules! accepted {
    ($($method:ident($($type:ty)?)),+) => {
        $(
            fn $method<E>(self, $(_: $type)?) -> std::result::Result<Self, E> {
                Ok(self)
            }
        )+
    };
}

impl<'de> Visitor<'de> for Readable {
    type Value = Self;

    accepted!(
        visit_unit(),
        visit_bool(bool),
        visit_i64(i64),
        visit_u64(u64),
        visit_f64(f64),
        visit_str(&str)
    );

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Self, A::Error> {
        while members.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
