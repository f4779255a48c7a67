//! Wake-ups between the processes that use a file: a process that has put messages sends a datagram to each process
//! that waits for some.
//!
//! ```text
//! process that waits                        the file                process that puts
//! inbox ── port, every 5 minutes ──► table `queue_consumers` ──► writer, when another process has committed
//!   ▲                                                                │
//!   │                                                                ▼ peers
//!   └──────────── datagram to 127.0.0.1: queue, number ────────── outbox ◄── publish, after the commit
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `outbox` | the subscriptions; which datagrams are sent, and how often |
//! | `inbox` | the socket that receives; the table of waiting processes, and those known; the datagrams' format |
//!
//! Datagrams are never trusted: they only cause a receive. A process in another network namespace, such as a
//! container's, gets no datagrams and finds messages by polling. Therefore no subscription is ever armed: a consumer
//! always polls too.

mod inbox;
mod outbox;

pub(crate) use inbox::{Consumers, Peers};
pub(crate) use outbox::FileNotifier;
