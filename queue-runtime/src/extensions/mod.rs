//! What a program may add to the [kernel](super::kernel).
//!
//! | module | contents |
//! |---|---|
//! | `operators/` | what is done by hand: redrive, browse, export, edit, pause |
//! | `recurring/` | messages that are submitted at set times |
//! | `history/` | what became of the messages of a type that keeps a history |
//! | `request/` | requests that wait for a reply, and the reply queue of an instance |
//! | `flow/` | how fast and in which order listeners handle messages: lanes, keys, rates, the circuit breaker |
//! | `packs/` | packs on the receiving side: the backend that returns their items as messages |
//! | `idempotency/` | work that is done once: claims, `once`, results in object stores |
//! | `payloads/` | payloads in a store beside the messages: the backend that puts them there, the stores, sweeps |
//! | `meter/` | the backend that counts storage transactions, and delays those beyond a limit |
//! | `storage_limit/` | requests that wait until the storage's limits let them be sent |
//! | `transactions/` | transactions of the application's on the storage of the queues |
//! | `unique/` | submissions of which one of each key puts a message |
//! | `objects` | what payload and result stores over an `object_store` share |

pub(crate) mod flow;
pub(crate) mod history;
pub mod idempotency;
pub mod meter;
#[cfg(feature = "object-store")]
pub(crate) mod objects;
pub(crate) mod operators;
pub(crate) mod packs;
pub mod payloads;
pub mod recurring;
pub mod request;
pub(crate) mod storage_limit;
pub(crate) mod transactions;
pub(crate) mod unique;
