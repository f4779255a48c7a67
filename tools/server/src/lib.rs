//! A server that speaks Azure Queue Storage's protocol over any storage engine: a program in any language uses the queues of
//! a SQLite file through the SDK that it has.
//!
//! ```text
//! connection ─► Target ─► who may ─► operation ─► Backend ─► Answer
//! ```
//!
//! | module | has authority over |
//! |---|---|
//! | `listen` | connections, bounds on what a client may send, the stop |
//! | `target` | which account, queue and message a request names, and its parameters |
//! | `permit` | who may: keys, signatures, stored policies |
//! | `origin` | which pages a browser may send requests from |
//! | `operation` | which operation a request is, and what it takes to be permitted |
//! | `service`, `queue`, `message` | the operations on an account, a queue, its messages |
//! | `settings` | what is recorded beside the queues: stored policies, properties of the service |
//! | `answer` | the answers, and refusals with their codes |

mod account;
mod answer;
mod listen;
mod message;
mod operation;
mod origin;
mod permit;
mod queue;
mod service;
mod settings;
mod target;

pub use account::{Account, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY};
pub use listen::Server;
