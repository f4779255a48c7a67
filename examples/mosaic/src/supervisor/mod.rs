//! Runs as many processors beside this one as its listener advises, for `--instances`.
//!
//! | module | contents |
//! |---|---|
//! | `instances` | starts, stops and replaces processes |
//! | `processor` | the command line of one |

mod instances;
mod processor;

pub(crate) use instances::{GRACE, Instances, parse_range};
pub(crate) use processor::another;
