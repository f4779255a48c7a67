mod arguments;
mod bars;
mod clean;
mod cost;
mod job;
mod location;
mod log;
mod role;
mod run;
mod status;

pub(crate) use arguments::{Arguments, Command};
pub(crate) use bars::Bars;
pub(crate) use clean::clean;
pub(crate) use cost::cost;
pub(crate) use log::log;
pub(crate) use role::role;
pub(crate) use run::{run, submit};
pub(crate) use status::status;
