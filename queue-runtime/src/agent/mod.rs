//! An agent outside of the workers that starts and stops instances of a program: from none on, by what is on their queue.
//!
//! ```text
//! queue ─ depth, age ─► agent ─ policy: how many, and why ─► start, stop ─► instances ─► queue
//!                         ▲                                                    │
//!                         └───────────── reports: in flight, handled ──────────┘
//! ```
//!
//! [`AgentBuilder`] starts one, with an [`InstancePolicy`](crate::policy::InstancePolicy) and [`Instances`]: the [`Processes`] of a
//! command, or your own. The program that is started calls [`attach`].

mod advised;
mod attach;
mod builder;
mod control;
mod event;
mod handle;
mod instance;
mod keeper;
mod measure;
mod processes;
mod run;

pub use attach::{Attached, attach};
pub use builder::{AgentBuilder, AgentError};
pub use event::{AgentEvent, AgentEventKind};
pub use handle::{AgentHandle, AgentInfo, AgentState};
pub use instance::{Ended, Instance, Instances, Report};
pub use processes::Processes;
