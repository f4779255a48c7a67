use std::borrow::Cow;
use std::fmt::Display;

use serde::ser::{Impossible, Serialize, SerializeStruct, SerializeTupleStruct, Serializer};

use super::{LinesError, check};

/// Returns the fields of a message, one a line.
pub(crate) fn to_lines(message: &(impl Serialize + ?Sized)) -> Result<Vec<u8>> {
    let mut writer = Writer::default();
    message
        .serialize(&mut writer)
        .map_err(|error| error.of_field("field `0`"))?;
    match writer.fields {
        0 => Err(LinesError::no_fields("without fields")),
        _ => Ok(writer.text.into_bytes()),
    }
}

/// Writes a message that is a struct, a tuple struct or, as a newtype, a single value.
#[derive(Default)]
struct Writer {
    text: String,
    fields: usize,
    /// Where the line of the last field starts.
    start: usize,
    is_in_field: bool,
}

type Result<T> = std::result::Result<T, LinesError>;
type Never = Impossible<(), LinesError>;

impl Writer {
    fn begin(&mut self) {
        if self.fields > 0 {
            self.text.push('\n');
        }
        self.fields += 1;
        self.start = self.text.len();
    }

    fn field(&mut self, name: Cow<'static, str>, value: &(impl Serialize + ?Sized)) -> Result<()> {
        self.begin();
        self.is_in_field = true;
        let written = value.serialize(&mut *self);
        self.is_in_field = false;
        written.map_err(|error| error.of_field(format_args!("field `{name}`")))
    }

    fn line(&mut self, value: &str) -> Result<()> {
        check(value)?;
        if !self.is_in_field {
            self.begin();
        }
        self.text.push_str(value);
        Ok(())
    }

    fn refuse<T>(&self, what: &str) -> Result<T> {
        Err(if self.is_in_field {
            LinesError::no_line(what)
        } else {
            LinesError::no_fields(what)
        })
    }
}

macro_rules! shown {
    ($($method:ident $type:ty),+) => {
        $(
            fn $method(self, value: $type) -> Result<()> {
                self.line(&value.to_string())
            }
        )+
    };
}

impl Serializer for &mut Writer {
    type Ok = ();
    type Error = LinesError;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Self;
    type SerializeStructVariant = Never;

    shown!(
        serialize_bool bool, serialize_char char,
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128,
        serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128
    );

    fn serialize_f32(self, value: f32) -> Result<()> {
        self.line(&finite(value.is_finite(), value)?)
    }

    fn serialize_f64(self, value: f64) -> Result<()> {
        self.line(&finite(value.is_finite(), value)?)
    }

    fn serialize_str(self, value: &str) -> Result<()> {
        self.line(value)
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<()> {
        self.refuse("a byte string")
    }

    fn serialize_none(self) -> Result<()> {
        self.line("")
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        value.serialize(&mut *self)?;
        if self.text.len() == self.start {
            return Err(LinesError::new(
                "a `Some` whose line is empty would be read as `None`",
            ));
        }
        Ok(())
    }

    fn serialize_unit(self) -> Result<()> {
        self.refuse("a unit")
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<()> {
        self.refuse("a unit struct")
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<()> {
        self.line(variant)
    }

    fn serialize_newtype_struct<T>(self, _: &'static str, value: &T) -> Result<()>
    where
        T: Serialize + ?Sized,
    {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T>(self, _: &str, _: u32, _: &'static str, _: &T) -> Result<()>
    where
        T: Serialize + ?Sized,
    {
        self.refuse("an enum variant with data")
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Never> {
        self.refuse("a sequence")
    }

    fn serialize_tuple(self, _: usize) -> Result<Never> {
        self.refuse("a tuple")
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self> {
        if self.is_in_field {
            return self.refuse("a tuple struct");
        }
        Ok(self)
    }

    fn serialize_tuple_variant(self, _: &str, _: u32, _: &'static str, _: usize) -> Result<Never> {
        self.refuse("an enum variant with data")
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Never> {
        self.refuse("a map")
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self> {
        if self.is_in_field {
            return self.refuse("a struct");
        }
        Ok(self)
    }

    fn serialize_struct_variant(self, _: &str, _: u32, _: &'static str, _: usize) -> Result<Never> {
        self.refuse("an enum variant with data")
    }
}

impl SerializeStruct for &mut Writer {
    type Ok = ();
    type Error = LinesError;

    fn serialize_field<T>(&mut self, name: &'static str, value: &T) -> Result<()>
    where
        T: Serialize + ?Sized,
    {
        self.field(name.into(), value)
    }

    fn skip_field(&mut self, name: &'static str) -> Result<()> {
        let skipped = LinesError::new("it is skipped, which would move the lines after it");
        Err(skipped.of_field(format_args!("field `{name}`")))
    }

    fn end(self) -> Result<()> {
        Ok(())
    }
}

impl SerializeTupleStruct for &mut Writer {
    type Ok = ();
    type Error = LinesError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        self.field(self.fields.to_string().into(), value)
    }

    fn end(self) -> Result<()> {
        Ok(())
    }
}

fn finite(is_finite: bool, number: impl Display) -> Result<String> {
    if is_finite {
        Ok(number.to_string())
    } else {
        Err(LinesError::new(format!(
            "{number} has no line; allowed are finite numbers"
        )))
    }
}
