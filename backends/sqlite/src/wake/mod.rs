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
//! | `outbox` | the subscriptions; what is sent, and how often |
//! | `inbox` | the socket that receives; the table, and the processes that are known to wait; the format |
//!
//! Datagrams are never trusted: they only cause a receive. A process in another network namespace, such as a
//! container's, gets none and finds messages by polling. Therefore no subscription is ever armed: a consumer always
//! polls too.

mod inbox;
mod outbox;

pub(crate) use inbox::{Consumers, Peers};
pub(crate) use outbox::FileNotifier;
