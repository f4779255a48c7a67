mod arguments;
mod bars;
mod job;
mod location;
mod log;
mod role;
mod run;

pub(crate) use arguments::{Arguments, Command};
pub(crate) use bars::Bars;
pub(crate) use log::log;
pub(crate) use role::role;
pub(crate) use run::{run, submit};
