//! What makes a list of tests a suite, and what every suite's environment has.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Declares the `Harness` of a suite, whose tests open what they test as a `dyn $store`.
macro_rules! harness {
    ($(#[$about:meta])* pub trait Harness opens $store:ident { $($more:tt)* }) => {
        $(#[$about])*
        #[async_trait::async_trait]
        pub trait Harness: Send + Sync {
            #[doc = concat!("Opens an empty [`", stringify!($store), "`], which no other test uses.")]
            async fn open(&self) -> Box<dyn $store>;

            /// Runs a test to completion.
            fn block_on(&self, test: $crate::clock::BoxFuture<'_, ()>);

            /// Whether the storage or the machine stalled during the test, for so long that a failure proves nothing.
            /// After a stall, the suite runs the test again in a new store, twice at most.
            fn stalled(&self) -> bool {
                false
            }

            $($more)*
        }
    };
}

/// Generates for a list of tests the public functions, the table of them, and the macro that makes each test a
/// `#[test]`. A test that is not listed is dead code, which the compiler reports.
///
/// The arguments before the list are the name of the macro, and the module of `conformance` in which the suite is. Each
/// group of tests names its module, and the function that makes of the harness what a test of the group is given. If
/// the harness returns `None`, there is nothing to test.
macro_rules! suite {
    ($dollar:tt $tests:ident $suite:ident $($module:ident from $open:path { $($name:ident)* })*) => {
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
            $crate::conformance::suite::run(
                || harness.block_on(test(harness)),
                || harness.stalled(),
            );
        }

        $($(
            #[doc = concat!("A test of ", stringify!($module), ".")]
            ///
            /// # Panics
            /// If what is tested violates its contract.
            pub fn $name(harness: &dyn Harness) -> $crate::clock::BoxFuture<'_, ()> {
                Box::pin(async move {
                    if let Some(given) = Option::from($open(harness).await) {
                        $module::$name(given).await;
                    }
                })
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

pub(super) use {harness, suite};

/// For tests that open their stores themselves, or whose tasks the harness spawns.
pub(super) async fn harness_itself<H: ?Sized>(harness: &H) -> &H {
    harness
}

/// How often a test is run at most.
const MOST_RUNS: usize = 3;

/// Runs a test, and again if it fails while the storage stalled: leases ended meanwhile, so that the failure proves
/// nothing.
pub(super) fn run(test: impl Fn(), stalled: impl Fn() -> bool) {
    for _ in 1..MOST_RUNS {
        let Err(failure) = catch_unwind(AssertUnwindSafe(&test)) else {
            return;
        };
        if !stalled() {
            resume_unwind(failure);
        }
        eprintln!("the storage stalled during this test, which is therefore run again");
    }
    test();
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns how often a test is run that fails this often, and whether it failed in the end.
    fn runs(failures: usize, stalled: bool) -> (usize, bool) {
        let count = Cell::new(0);
        let test = || {
            count.set(count.get() + 1);
            assert!(count.get() > failures, "a failure");
        };
        let ran = catch_unwind(AssertUnwindSafe(|| run(test, || stalled)));
        (count.get(), ran.is_err())
    }

    #[test]
    fn only_failures_during_a_stall_are_repeated_and_not_for_ever() {
        assert_eq!(runs(0, true), (1, false));
        assert_eq!(runs(1, false), (1, true));
        assert_eq!(runs(2, true), (3, false));
        assert_eq!(runs(3, true), (3, true));
    }
}
