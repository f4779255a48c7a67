//! An agent outside of the workers that starts and stops instances of a program: from none on, by what is on their queue.
//!
//! ```text
//! queue ─ depth, age ─► agent ─ policy: how many, and why ─► start, stop ─► instances ─► queue
//!                         ▲                                                    │
//!                         └───────────── reports: in flight, handled ──────────┘
//! ```
//!
//! [`AgentBuilder`] starts an agent, with an [`InstancePolicy`], such as an [`InstanceTarget`] within [`BusyHours`], and
//! [`Instances`]: the [`Processes`] of a command, or your own. The program of an instance calls [`attach`].
//!
//! | module | contents |
//! |---|---|
//! | `agent` | the builder, the handle, the events |
//! | `error` | why an agent is not started |
//! | `policy` | how many instances should run |
//! | `run` | the task: looks, decides and acts |
//! | `control` | the decisions, without storage, processes or clock |
//! | `measure` | arrivals, and what an instance handles |
//! | `keeper` | the lock of a queue's agents |
//! | `instances` | what starts, stops and lists instances |
//! | `attach` | in an instance: its reports, and the end that its agent asks for |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod agent;
mod attach;
mod control;
mod error;
mod instances;
mod keeper;
mod measure;
mod policy;
mod run;

pub use agent::{AgentBuilder, AgentEvent, AgentEventKind, AgentHandle, AgentInfo, AgentState};
pub use attach::{Attached, attach};
pub use error::{AgentError, AgentErrorKind};
pub use instances::{Ended, Instance, Instances, Processes, Report};
pub use policy::{BusyHours, FleetLoad, InstancePolicy, InstanceTarget, InvalidHours, Wanted};
