//! Finding what no reader of JSON reads in a value, and where it is.

use std::any::type_name;
use std::fmt::Display;

use serde::ser::{
    self, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::json::MAX_JSON_DEPTH;
use crate::text::{clip, shorten};

/// The longest path that an error names as a whole, in bytes.
const MAX_PATH: usize = 200;

/// Returns what is wrong with the first float that is not finite, or the first value with more than `most` values
/// around it, and its path, if there is one.
pub(super) fn find(value: &impl Serialize, most: usize) -> Option<String> {
    let Found(place) = value.serialize(&mut Finder { left: most }).err()?;
    Some(format!("{} {}", shown(&place.path), place.problem?))
}

/// Returns the path of what is at `path` inside `part`.
fn join(part: &str, path: &str) -> String {
    let is_nested = part.is_empty() || path.is_empty() || path.starts_with('[');
    let dot = if is_nested { "" } else { "." };
    format!("{}{dot}{path}", clip(part, MAX_PATH))
}

/// Returns a path as an error names it.
pub(super) fn shown(path: &str) -> String {
    match path {
        "" => "the payload itself".to_owned(),
        path => format!("`{}`", shorten(path, MAX_PATH)),
    }
}

/// Follows a value as `serde_json` does, and keeps nothing of it.
struct Finder {
    /// How many values may be around the next value.
    left: usize,
}

/// What was found, and where. No problem if the type's own `Serialize` failed.
#[derive(Debug, thiserror::Error)]
#[error("not serializable")]
struct Found(Box<Place>);

#[derive(Debug, Default)]
struct Place {
    problem: Option<String>,
    path: String,
}

impl ser::Error for Found {
    fn custom<T: Display>(_: T) -> Self {
        Self(Box::default())
    }
}

type Result<T = ()> = std::result::Result<T, Found>;

fn found<T>(problem: String) -> Result<T> {
    let (problem, path) = (Some(problem), String::new());
    Err(Found(Box::new(Place { problem, path })))
}

/// The inside of a list or an object.
struct Level<'a> {
    finder: &'a mut Finder,
    levels: usize,
    at: usize,
    /// The name of the next member, if it is the field of a type.
    key: Option<String>,
}

impl Finder {
    fn inside(&mut self, levels: usize) -> Result<Level<'_>> {
        let Some(left) = self.left.checked_sub(levels) else {
            return found(format!("is nested more than {MAX_JSON_DEPTH} levels deep"));
        };
        self.left = left;
        Ok(Level {
            finder: self,
            levels,
            at: 0,
            key: None,
        })
    }
}

impl Level<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, name: Option<&str>, value: &T) -> Result {
        let at = self.at;
        self.at += 1;
        value.serialize(&mut *self.finder).map_err(|mut found| {
            let part = name.map_or_else(|| format!("[{at}]"), str::to_owned);
            found.0.path = join(&part, &found.0.path);
            found
        })
    }

    fn leave(self) -> Result {
        self.finder.left += self.levels;
        Ok(())
    }
}

macro_rules! passed {
    ($($method:ident($($type:ty),*)),+) => {
        $(
            fn $method(self, $(_: $type),*) -> Result {
                Ok(())
            }
        )+
    };
}

macro_rules! finite {
    ($($method:ident $type:ty),+) => {
        $(
            fn $method(self, number: $type) -> Result {
                if number.is_finite() {
                    return Ok(());
                }
                found(format!("is {number}, for which JSON has no number; allowed are finite numbers"))
            }
        )+
    };
}

macro_rules! levels {
    ($($levels:literal $method:ident($($type:ty),*)),+) => {
        $(
            fn $method(self, $(_: $type),*) -> Result<Level<'a>> {
                self.inside($levels)
            }
        )+
    };
}

impl<'a> Serializer for &'a mut Finder {
    type Ok = ();
    type Error = Found;
    type SerializeSeq = Level<'a>;
    type SerializeTuple = Level<'a>;
    type SerializeTupleStruct = Level<'a>;
    type SerializeTupleVariant = Level<'a>;
    type SerializeMap = Level<'a>;
    type SerializeStruct = Level<'a>;
    type SerializeStructVariant = Level<'a>;

    finite!(serialize_f32 f32, serialize_f64 f64);

    passed!(
        serialize_bool(bool),
        serialize_char(char),
        serialize_str(&str),
        serialize_bytes(&[u8]),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_u128(u128),
        serialize_none(),
        serialize_unit(),
        serialize_unit_struct(&'static str),
        serialize_unit_variant(&'static str, u32, &'static str)
    );

    // A variant is an object with what it holds.
    levels!(
        1 serialize_seq(Option<usize>), 1 serialize_tuple(usize), 1 serialize_tuple_struct(&'static str, usize),
        1 serialize_map(Option<usize>), 1 serialize_struct(&'static str, usize),
        2 serialize_tuple_variant(&'static str, u32, &'static str, usize),
        2 serialize_struct_variant(&'static str, u32, &'static str, usize)
    );

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T>(self, _: &'static str, value: &T) -> Result
    where
        T: Serialize + ?Sized,
    {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T>(self, _: &str, _: u32, name: &'static str, value: &T) -> Result
    where
        T: Serialize + ?Sized,
    {
        let mut level = self.inside(1)?;
        level.part(Some(name), value)?;
        level.leave()
    }
}

macro_rules! parts {
    ($($trait:ident $method:ident $(($name:ident))?),+) => {
        $(
            impl $trait for Level<'_> {
                type Ok = ();
                type Error = Found;

                fn $method<T>(&mut self, $($name: &'static str,)? value: &T) -> Result
                where
                    T: Serialize + ?Sized,
                {
                    self.part(None$(.or(Some($name)))?, value)
                }

                fn end(self) -> Result {
                    self.leave()
                }
            }
        )+
    };
}

parts!(
    SerializeSeq serialize_element, SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field,
    SerializeStruct serialize_field(name), SerializeStructVariant serialize_field(name)
);

impl SerializeMap for Level<'_> {
    type Ok = ();
    type Error = Found;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result {
        // The fields of a struct with `flatten` have `str` keys. The entries of a map are numbered, because their names
        // are values.
        if type_name::<T>() == type_name::<str>() {
            let key = serde_json::to_string(key).map_err(<Found as ser::Error>::custom)?;
            self.key = Some(key.trim_matches('"').to_owned());
        }
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        let key = self.key.take();
        self.part(key.as_deref(), value)
    }

    fn end(self) -> Result {
        self.leave()
    }
}
