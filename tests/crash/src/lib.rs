//! Crash suites: processes killed and stopped at random, power lost, writes that fail, futures dropped,
//! requests harmed.
//!
//! Each suite runs the public API, and judges it by ledgers that do not depend on it.
//!
//! | module | contents |
//! |---|---|
//! | [`accounts`] | kills processes of the example `ledger`, and checks every balance |
//! | [`campaign`] | kills and stops processes at random, drains the queues, checks the history |
//! | [`duplicates`] | kills processes that do the same work by `once`, and checks its effects |
//! | [`groups`] | kills processes that handle messages of groups, and checks the order of each |
//! | [`cancels`] | kills processes whose messages are cancelled, and checks what was handled |
//! | [`submissions`] | kills processes that submit the same keys once, and counts the messages of each |
//! | [`ticks`] | kills processes that run the same schedules, and counts the messages of each tick |
//! | [`database`] | a PostgreSQL server that faults befall: crashes, a network that fails, a failover, a clock that steps |
//! | [`crew`] | the processes of a run, which share one file |
//! | [`process`] | a process of a suite, which never outlives its test |
//! | [`worker`] | what the processes do: produce, listen, accept, redrive, hold |
//! | [`ledger`] | an append-only file, synced after each entry, of what a process is about to do and has done |
//! | [`history`] | the check of all ledgers: nothing lost, nothing unexpected, nothing settled twice |
//! | [`sabotage`] | planted bugs, which prove that the suites detect them |
//! | [`packs`] | records what processes do with packs, and explains what ran twice |
//! | [`power`] | images of a disk after a power loss, and writes that fail (Linux only) |
//! | [`cancel`] | drops a future at its nth await |
//! | [`harm`] | a proxy that harms a share of all requests |
//! | [`messages`] | the messages of the suites |
//! | [`usage`] | what a process uses of the system (Linux only) |
//! | [`plan`] | the seed and the extent of a run, from the environment |

pub mod accounts;
pub mod campaign;
pub mod cancel;
pub mod cancels;
pub mod crew;
pub mod database;
pub mod duplicates;
pub mod groups;
pub mod harm;
pub mod history;
pub mod ledger;
pub mod messages;
pub mod packs;
pub mod plan;
#[cfg(target_os = "linux")]
pub mod power;
pub mod process;
pub mod sabotage;
pub mod submissions;
pub mod ticks;
#[cfg(target_os = "linux")]
pub mod usage;
pub mod worker;
