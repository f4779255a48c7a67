//! Receiving: `backend → wire → envelope → message → handler → disposition → backend`.
//!
//! | file | does | next |
//! |---|---|---|
//! | `fetch` | receives messages and starts to renew their leases | `incoming` |
//! | `incoming` | parses the body and judges the attempts (`attempts`) | `admission` |
//! | `admission` | decides whether the message is handled | `delivery`, or the listener |
//! | `idempotent` | claims the message's key in an idempotency store (`idempotency`), if there is one | `delivery`, or the listener |
//! | `received`, `progress`, `delivery`, `handler`, `handler_with` | the application's view of the message, its checkpoints | `disposition` |
//! | `disposition` | completes the message, or calls `put_back` or `poison`, for an error as `classify` decides | `recorded`, `settle` |
//! | `recorded` | records the work of the message as done, if its consumer has a store | |
//! | `settle` | deletes the message or puts it back, with retries | |
//! | `transaction`, `completing` | completes the message within a transaction of the application's, and learns its outcome |  |
//! | `settled` | the results of settling | |
//! | `setters` | the methods that `accept` and the builder of listeners share | |
//!
//! `accept` runs these steps for one message; the listener runs them for many.

mod accept;
mod admission;
mod attempts;
mod classify;
mod completing;
mod consumer;
mod delivery;
pub(crate) mod disposition;
mod fetch;
mod handler;
mod handler_with;
mod idempotency;
pub(crate) mod idempotent;
mod incoming;
mod on_poison;
mod poison;
mod progress;
pub(crate) mod put_back;
mod received;
mod recorded;
mod setters;
mod settle;
mod settled;
pub(crate) mod transaction;
mod unreplied;

pub use crate::served::KindMismatch;
pub use accept::{Accept, AcceptError};
pub(crate) use admission::{Admission, admit};
pub(crate) use classify::Classifiers;
pub use classify::OnError;
pub use completing::Completing;
pub(crate) use consumer::{Caller, Consumer, InvalidConsumer, MissingQueue, Options};
pub use delivery::{Delivery, SettleError};
pub(crate) use fetch::{fetch, open};
pub use handler::{Blocking, Handler, blocking};
pub(crate) use handler::{Call, ErasedHandler};
pub use handler_with::HandlerWith;
pub(crate) use idempotency::Idempotency;
pub(crate) use incoming::{Fetched, Incoming, Meta};
pub(crate) use on_poison::OnPoison;
pub use on_poison::Poisoned;
pub use progress::{CheckpointError, MAX_CHECKPOINT};
pub use queue_core::IntoDisposition;
pub use received::Received;
pub(crate) use setters::consumer_setters;
pub(crate) use settle::lost;
pub(crate) use settled::outcome;
pub use settled::{SettleProblem, Settled};
