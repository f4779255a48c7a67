//! Looking after a file: checking it, copying it while it is in use, and copying what is readable of a damaged one.

mod backup;
mod check;
mod check_rows;
mod readable;
mod report;
mod salvage;

pub use check::{CheckProgress, FileCheck};
pub use report::{CheckReport, Problem, ProblemKind};
pub use salvage::{Salvaged, salvage};
