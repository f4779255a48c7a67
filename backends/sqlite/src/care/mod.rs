//! Looking after a file: checking it, copying it while it is in use, and copying what is readable of a damaged one.

mod backup;
mod check;
mod check_rows;
mod salvage;

pub use check::{CheckProgress, CheckReport, FileCheck, Problem, ProblemKind};
pub use salvage::{Salvaged, salvage};
