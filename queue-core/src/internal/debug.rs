/// Implements `Debug` for a type by those of its fields that are worth showing.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_fields {
    ($name:ident $(<$($parameter:ident),+>)? { $($field:ident),* }) => {
        impl $(<$($parameter),+>)? ::std::fmt::Debug for $name $(<$($parameter),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    };
}
