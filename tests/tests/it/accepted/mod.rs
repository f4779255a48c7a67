//! Correct uses of the framework: they compile without a warning, and run.
//!
//! They are not among the cases in `ui`, since with any that is to run, each case there is built alone.

mod edges;
mod handlers;
mod hygiene;
mod inside_macros;
mod no_implicit_prelude;
pub mod no_warnings;

#[test]
fn correct_uses_are_accepted() {
    edges::main();
    handlers::main();
    hygiene::main();
    inside_macros::main();
    no_implicit_prelude::main();
    no_warnings::main();
}
