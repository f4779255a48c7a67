mod agent;
mod arguments;
mod bars;
mod job;
mod location;
mod role;
mod run;
#[cfg(feature = "web")]
mod serve;
mod status;

pub(crate) use arguments::{Arguments, Command};
pub(crate) use bars::{Bars, QUIET, log};
pub(crate) use role::role;
pub(crate) use run::{run, submit};
#[cfg(feature = "web")]
pub(crate) use serve::serve;
pub(crate) use status::{clean, status};
