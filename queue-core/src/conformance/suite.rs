//! What makes a list of tests a suite.

/// Generates for a list of tests the public functions, the table of them, and the macro that gives each a `#[test]`. A
/// test that is not listed is dead code, which the compiler reports.
///
/// The arguments before the list are the name of the macro, and the module of `conformance` in which the suite is.
macro_rules! suite {
    ($dollar:tt $tests:ident $suite:ident $($module:ident { $($name:ident)* })*) => {
        /// One test of the suite.
        pub type Test = for<'a> fn(&'a dyn Harness) -> $crate::clock::BoxFuture<'a, ()>;

        /// All tests of the suite, with their names.
        pub const TESTS: &[(&str, Test)] = &[$($((stringify!($name), $name as Test),)*)*];

        #[doc = concat!("Runs one test. The functions that [`", stringify!($tests), "!`](crate::", stringify!($tests), ")")]
        /// generates call this.
        ///
        /// # Panics
        /// If the test fails.
        pub fn run(harness: &dyn Harness, test: Test) {
            harness.block_on(test(harness));
        }

        $($(
            #[doc = concat!("A test of ", stringify!($module), ".")]
            ///
            /// # Panics
            /// If what is tested violates its contract.
            pub fn $name(harness: &dyn Harness) -> $crate::clock::BoxFuture<'_, ()> {
                Box::pin($module::$name(harness))
            }
        )*)*

        /// Generates a `#[test]` for each test of the suite.
        ///
        /// The argument is an expression for the suite's `Harness`, evaluated by each test.
        #[macro_export]
        macro_rules! $tests {
            ($dollar harness:expr) => {
                $($(
                    #[test]
                    fn $name() {
                        $dollar crate::conformance::$suite::run(
                            &$dollar harness,
                            $dollar crate::conformance::$suite::$name,
                        );
                    }
                )*)*
            };
        }
    };
}

pub(super) use suite;
