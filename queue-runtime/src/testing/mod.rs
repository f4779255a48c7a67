//! Tools for testing code that uses queues: messages made by hand, what was submitted, paused time, and storage with
//! injected faults. The feature `testing`, which adds the tools, belongs into the development dependencies:
//!
//! ```toml
//! [dev-dependencies]
//! storage-queues = { path = "../queues/queue-runtime", features = ["testing"] }
//! ```
//!
//! | item | does |
//! |---|---|
//! | [`received()`] | makes a [`Received`](crate::Received) by hand, so that a test calls a handler as a function |
//! | [`service()`] | connects to private queues in memory, with a [`TokioClock`] |
//! | [`service_on_sqlite`] | connects to private queues in a temporary SQLite file, in real time |
//! | [`service_with_faults`] | connects as `service()` does, with a [`FaultInjector`] between the service and its queues |
//! | [`TestService::submitted`] | returns what was submitted, by type |
//! | [`drain()`] | waits until the queues of listeners are empty |
//! | [`TokioClock`] | a [`Clock`](crate::clock::Clock) that follows Tokio's time, also while that is paused |
//! | [`FaultInjector`] | a [`Backend`](queue_core::backend::Backend) that injects scripted or random faults into another backend |
//!
//! With `#[tokio::test(start_paused = true)]` a test takes no real time: whenever all tasks are idle, Tokio advances to
//! the next timer. A sleep in a test with paused time ends after everything that is due before it. Pausing the time
//! requires Tokio's feature `test-util`.
//!
//! ```
//! use std::time::Duration;
//! use queue_runtime::{Message, testing};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Serialize, Deserialize, Message)]
//! struct Order {
//!     number: u32,
//! }
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = testing::service().await;
//! service.submit(Order { number: 7 }).delay(Duration::from_secs(3600)).await?;
//!
//! let accept = service.accept::<Order>().wait(Duration::from_secs(7200));
//! let order = accept.await?.expect("visible after an hour");
//! assert_eq!(order.number, 7);
//!
//! // The lease is renewed for as long as the delivery is held.
//! tokio::time::sleep(Duration::from_secs(120)).await;
//! order.complete().await?;
//! # Ok(())
//! # }
//! ```

mod backend;
mod drain;
mod fault;
mod fault_injector;
mod received;
mod service;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use drain::{Drain, Drained, NotDrained, NotEmpty, drain};
pub use fault::Fault;
pub use fault_injector::FaultInjector;
pub use queue_clock::TokioClock;
pub use received::{ReceivedBuilder, received};
pub use service::{Submission, TestService, service, service_with_faults};
#[cfg(feature = "sqlite")]
pub use sqlite::service_on_sqlite;
