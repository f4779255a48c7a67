//! Parameters of statements. Their types are known without the server, so that a statement need not be prepared.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// A value of a type that the server has.
pub(crate) trait Value: ToSql + Sync {
    /// The server's type.
    fn sql_type(&self) -> Type;
}

/// A parameter of a statement.
pub(crate) type Parameter<'a> = &'a (dyn Value + Sync);

macro_rules! values {
    ($($value:ty: $one:ident, $many:ident;)*) => {$(
        impl Value for $value {
            fn sql_type(&self) -> Type {
                Type::$one
            }
        }

        impl Value for Option<$value> {
            fn sql_type(&self) -> Type {
                Type::$one
            }
        }

        impl Value for Vec<$value> {
            fn sql_type(&self) -> Type {
                Type::$many
            }
        }

        impl Value for Vec<Option<$value>> {
            fn sql_type(&self) -> Type {
                Type::$many
            }
        }
    )*};
}

values! {
    bool: BOOL, BOOL_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    &[u8]: BYTEA, BYTEA_ARRAY;
    Vec<u8>: BYTEA, BYTEA_ARRAY;
    Uuid: UUID, UUID_ARRAY;
}
