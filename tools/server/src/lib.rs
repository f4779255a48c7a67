//! A server that speaks Azure Queue Storage's protocol over any storage engine: a program in any language uses the queues of
//! a SQLite file through the SDK that it has.
//!
//! ```text
//! connection ─► Target ─► who may ─► operation ─► Backend ─► Answer
//! ```
//!
//! | module | has authority over |
//! |---|---|
//! | `listen`, `tls` | connections, bounds on heads of requests, encryption, the stop |
//! | `request` | a request from its head to its answer |
//! | `observe`, `readiness` | metrics, the log of requests; whether the queues answer |
//! | `limit` | how many requests on a queue are answered, as the service has a limit |
//! | `target` | which account, queue and message a request names, and its parameters |
//! | `permit` | who may: keys, signatures, stored policies |
//! | `origin` | which pages a browser may send requests from |
//! | `operation` | which operation a request is, and what it takes to be permitted |
//! | `service`, `queue`, `message` | the operations on an account, a queue, its messages |
//! | `attached` | payloads beside their messages, which are answered within the text |
//! | `settings` | what is recorded beside the queues: stored policies, properties of the service |
//! | `answer` | the answers, and refusals with their codes |

mod account;
mod answer;
mod attached;
mod limit;
mod listen;
mod message;
mod observe;
mod operation;
mod origin;
mod permit;
mod queue;
mod readiness;
mod request;
mod service;
mod settings;
mod target;
#[cfg(feature = "tls")]
mod tls;

/// Without the feature, no connection is encrypted.
#[cfg(not(feature = "tls"))]
mod tls {
    use std::io::Result;

    use tokio::net::TcpStream;

    #[derive(Debug, Clone)]
    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) async fn accept(&self, _: TcpStream) -> Result<TcpStream> {
            match *self {}
        }
    }
}

pub use account::{Account, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY};
pub use limit::Load;
pub use listen::{Running, Server};
pub use request::Peer;
