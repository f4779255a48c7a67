//! Moving the messages of a poison queue back.
//!
//! | module | does |
//! |---|---|
//! | `redrive` | the builder |
//! | `run` | a redrive, and its dry run |
//! | `filters` | which messages are redriven |
//! | `browsing`, `receiving` | how the messages are found: on storage that can be browsed, and elsewhere |
//! | `pass` | what happens to each message |
//! | `report` | what has happened |

mod browsing;
mod filters;
mod pass;
mod receiving;
#[expect(
    clippy::module_inception,
    reason = "a module is named after the concept that it owns"
)]
mod redrive;
mod report;
mod run;

pub use redrive::Redrive;
pub use report::{RedriveError, RedriveOutcome, RedriveStep, Redriven};
