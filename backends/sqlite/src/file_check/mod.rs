//! Checking a file: its pages, and what its tables promise each other.

mod report;
mod rows;
mod run;

pub use report::{CheckReport, Problem, ProblemKind};
pub use run::{CheckProgress, FileCheck};
