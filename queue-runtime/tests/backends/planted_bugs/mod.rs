//! Proof that the conformance suites can fail: each planted bug fails the listed tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

mod backend;
mod bug;
mod buggy_backend;
mod buggy_results;
mod buggy_swaps;
#[cfg(feature = "sqlite")]
mod buggy_transactions;
mod idempotency;
mod notify;
#[cfg(feature = "sqlite")]
mod transactions;

fn fails(test: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(test)).is_err()
}

/// Generates a test for each bug, and one that what is tested passes without a bug. The calling module has the `suite`,
/// its `Bug`, and a function `notices`.
macro_rules! planted {
    ($($bug:ident => $($test:ident)*;)*) => {
        $(
            #[expect(non_snake_case, reason = "named after the bug")]
            #[test]
            fn $bug() {
                $(
                    assert!(
                        notices(suite::$test, Bug::$bug),
                        "{} does not notice {:?}", stringify!($test), Bug::$bug,
                    );
                )*
            }
        )*

        #[test]
        fn without_a_bug_all_tests_pass() {
            for &(name, test) in suite::TESTS {
                assert!(!notices(test, Bug::None), "{name}");
            }
        }
    };
    (for every test: $($bug:ident => $($test:ident)*;)*) => {
        planted! { $($bug => $($test)*;)* }

        #[test]
        fn each_test_notices_a_bug() {
            let noticing = [$($(stringify!($test),)*)*];
            for (name, _) in suite::TESTS {
                assert!(noticing.contains(name), "{name}");
            }
        }
    };
}

use planted;
