//! The workflow from the client's submission to its response, with all roles in this process.

mod cleaning;
mod duplicates;
mod failures;
#[cfg(unix)]
mod links;
mod mosaics;
mod support;
