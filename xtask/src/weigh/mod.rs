//! `cargo xtask weigh`: what the project weighs, beside what the committed page says.
//!
//! | module | contents |
//! |---|---|
//! | `command` | reads the project, and prints or writes what it weighs |
//! | `project` | the rows and lists of the whole project |
//! | `packages` | the packages of the workspace, and what kind of code each of their files is |
//! | `rules` | what is listed by name: types declared twice, circles, arrows that point up |
//! | `modules` | the modules of a crate, and what a path leads to |
//! | `source`, `reader` | one source file: its lines of code, and what it declares and imports |
//! | `page` | how the page is written and read |
//! | `compare` | what has become heavier or lighter |

mod command;
mod compare;
mod modules;
mod packages;
mod page;
mod project;
mod reader;
mod rules;
mod source;

pub(crate) use command::{Then, run};
