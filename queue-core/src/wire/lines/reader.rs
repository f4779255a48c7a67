use std::str::{FromStr, Split};

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::{HEAD, LinesError, check, text};

/// Returns the message whose fields these are, one a line.
pub(crate) fn from_lines<'de, T: Deserialize<'de>>(payload: &'de [u8]) -> Result<T> {
    let text = text(payload)?;
    let mut reader = Reader {
        lines: text.split('\n'),
        read: 0,
        found: memchr::memchr_iter(b'\n', payload).count() + 1,
        field: None,
    };
    let message = T::deserialize(&mut reader);
    let message = message.map_err(|error| match reader.field {
        Some(value) => error.on_line(reader.place("0"), value),
        None => error,
    })?;
    if reader.read < reader.found {
        return Err(reader.wrong_number(reader.read, "there are too many lines"));
    }
    Ok(message)
}

/// Reads a message that is a struct, a tuple struct or, as a newtype, a single value.
struct Reader<'de> {
    lines: Split<'de, char>,
    read: usize,
    found: usize,
    /// The line of the field that is being read.
    field: Option<&'de str>,
}

type Result<T> = std::result::Result<T, LinesError>;

impl<'de> Reader<'de> {
    /// Returns the line of the field, or of the only field of a newtype.
    fn value(&mut self) -> Result<&'de str> {
        if self.field.is_none() {
            self.begin("0", 1)?;
        }
        let value = self.field.unwrap_or_default();
        check(value)?;
        Ok(value)
    }

    fn begin(&mut self, name: &str, fields: usize) -> Result<()> {
        self.field = self.lines.next();
        if self.field.is_none() {
            return Err(self.wrong_number(fields, &format!("field `{name}` is missing")));
        }
        self.read += 1;
        Ok(())
    }

    fn place(&self, name: &str) -> String {
        format!("field `{name}` on line {}", HEAD.len() + self.read)
    }

    fn wrong_number(&self, fields: usize, problem: &str) -> LinesError {
        let (wanted, found) = (HEAD.len() + fields, HEAD.len() + self.found);
        LinesError::of_body(format!(
            "{problem}: {wanted} lines are wanted, which are the queue URI, the client id, the request id and the fields, \
             and {found} were found"
        ))
    }

    fn parsed<T: FromStr>(&mut self, expected: &str) -> Result<T> {
        let parsed = self.value()?.parse();
        parsed.map_err(|_| LinesError::expected(expected))
    }

    fn refuse<T>(&self, what: &str) -> Result<T> {
        Err(if self.field.is_some() {
            LinesError::no_line(what)
        } else {
            LinesError::no_fields(what)
        })
    }
}

/// The fields of a struct, in order.
struct Fields<'r, 'de> {
    reader: &'r mut Reader<'de>,
    /// `None` if the fields have no names.
    names: Option<&'static [&'static str]>,
    count: usize,
}

impl<'de> SeqAccess<'de> for Fields<'_, 'de> {
    type Error = LinesError;

    fn next_element_seed<T>(&mut self, seed: T) -> Result<Option<T::Value>>
    where
        T: DeserializeSeed<'de>,
    {
        let at = self.reader.read;
        let name = self.names.and_then(|names| names.get(at)).copied();
        let name = name.map_or_else(|| at.to_string(), str::to_owned);
        self.reader.begin(&name, self.count)?;
        let read = seed.deserialize(&mut *self.reader);
        let value = self.reader.field.take().unwrap_or_default();
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) => Err(error.on_line(self.reader.place(&name), value)),
        }
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $type:ty),+) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
                visitor.$visit(self.parsed::<$type>(stringify!($type))?)
            }
        )+
    };
}

macro_rules! finite {
    ($($method:ident $visit:ident $type:ty),+) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
                let number = self.parsed::<$type>(stringify!($type))?;
                if !number.is_finite() {
                    return Err(LinesError::expected("a finite number"));
                }
                visitor.$visit(number)
            }
        )+
    };
}

macro_rules! borrowed {
    ($($method:ident),+) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
                visitor.visit_borrowed_str(self.value()?)
            }
        )+
    };
}

macro_rules! refused {
    ($($method:ident $what:literal),+) => {
        $(
            fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
                self.refuse($what)
            }
        )+
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = LinesError;

    parsed!(
        deserialize_char visit_char char,
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64, deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128
    );

    finite!(deserialize_f32 visit_f32 f32, deserialize_f64 visit_f64 f64);

    borrowed!(deserialize_str, deserialize_string, deserialize_identifier);

    refused!(
        deserialize_any "a value of any type",
        deserialize_ignored_any "a value of any type",
        deserialize_bytes "a byte string",
        deserialize_byte_buf "a byte string",
        deserialize_unit "a unit",
        deserialize_seq "a sequence",
        deserialize_map "a map"
    );

    /// Ignores case: .NET writes `True`.
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let value = self.value()?;
        let is = |text: &str| value.eq_ignore_ascii_case(text);
        match (is("true"), is("false")) {
            (true, _) => visitor.visit_bool(true),
            (_, true) => visitor.visit_bool(false),
            _ => Err(LinesError::expected("`true` or `false`")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.value()?.is_empty() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V>(self, _: &'static str, visitor: V) -> Result<V::Value>
    where
        V: Visitor<'de>,
    {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value>
    where
        V: Visitor<'de>,
    {
        visitor.visit_enum(BorrowedStrDeserializer::new(self.value()?))
    }

    fn deserialize_unit_struct<V>(self, _: &'static str, _: V) -> Result<V::Value>
    where
        V: Visitor<'de>,
    {
        self.refuse("a unit struct")
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value> {
        self.refuse("a tuple")
    }

    fn deserialize_tuple_struct<V>(
        self,
        _: &'static str,
        count: usize,
        visitor: V,
    ) -> Result<V::Value>
    where
        V: Visitor<'de>,
    {
        if self.field.is_some() {
            return self.refuse("a tuple struct");
        }
        let reader = self;
        visitor.visit_seq(Fields {
            reader,
            names: None,
            count,
        })
    }

    fn deserialize_struct<V>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value>
    where
        V: Visitor<'de>,
    {
        if self.field.is_some() {
            return self.refuse("a struct");
        }
        let reader = self;
        visitor.visit_seq(Fields {
            reader,
            names: Some(names),
            count: names.len(),
        })
    }
}
