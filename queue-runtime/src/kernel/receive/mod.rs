//! Receiving: `backend → wire → envelope → message → handler → disposition → backend`.
//!
//! | file | does | next |
//! |---|---|---|
//! | `fetch` | receives messages and starts to renew their leases | `incoming` |
//! | `incoming` | parses the body and judges the attempts (`attempts`) | `admission` |
//! | `admission` | decides whether the message gets an attempt, and decodes it | `idempotent` |
//! | `data` | in between, fetches the data of an event that is attached to its message | |
//! | `idempotent` | claims the message's key in an idempotency store (`idempotency`), if there is one | `delivery`, or the listener |
//! | `batch/` | has messages handled several at a time | |
//! | `waiting` | has a message wait for data or a claim that cannot be had now (`outage`), without counting an attempt | |
//! | `parking` | where messages wait until they can be handled: for room, for their turn, for the rate | |
//! | `received`, `progress`, `delivery`, `complete_all`, `handler`, `handler_with` | the application's view of the message, its checkpoints | `../settlement/` |
//! | `call` | a handler with its type erased, its calls, and what may be around it and says when it is ready | |
//! | `consumer`, `serves` | how the messages of a queue are received and settled, and of which types they are | |
//! | `setters` | the methods that `accept` and the builder of listeners share | |
//!
//! `accept` runs these steps for one message; the listener runs them for many.

mod accept;
mod admission;
mod attempts;
mod batch;
mod call;
mod complete_all;
mod consumer;
mod data;
mod delivery;
mod fetch;
mod handler;
mod handler_with;
mod idempotency;
mod idempotent;
mod incoming;
mod parking;
mod progress;
mod received;
mod refusal;
mod serves;
mod setters;
mod waiting;

pub use crate::kernel::served::KindMismatch;
pub(crate) use crate::kernel::settlement::{
    End, Handled, OnPoison, Settling, body_unhandled, outcome,
};
pub use crate::kernel::settlement::{OnError, Poisoned, SettleProblem, Settled};
pub use accept::{Accept, AcceptError, AcceptMany, Messages};
pub(crate) use admission::{admit, can_decode_early, decode, is_admissible};
pub(crate) use attempts::{Account, believe};
pub(crate) use batch::longest;
pub use batch::{Batch, BatchDisposition, BatchIter, Batching, IntoBatchDisposition, batch};
pub use call::Work;
pub(crate) use call::{
    Around, Call, Ending, Erased, ErasedHandler, Prepared, Readiness, Ready, ReadyAround,
    ReadyService, Seat, Transact, Unfit,
};
pub use complete_all::CompleteAllError;
pub(crate) use consumer::{Caller, Consumer, InvalidConsumer, MissingQueue, Options};
pub(crate) use data::{expanded_size, fetch_data, lacks_data};
pub use delivery::{Delivery, SettleError};
pub(crate) use fetch::{fetch, open, refresh};
pub(crate) use handler::HandlerFuture;
pub use handler::{Blocking, Handler, blocking};
pub use handler_with::HandlerWith;
pub(crate) use idempotency::Idempotency;
pub(crate) use idempotent::claim;
pub(crate) use incoming::{Fetched, Incoming, Meta};
pub(crate) use parking::{ParkingRoom, can_wait_outside, park, park_at, put_back_after};
pub use progress::{CheckpointError, MAX_CHECKPOINT};
pub use queue_core::IntoDisposition;
pub use received::Received;
pub(crate) use refusal::Refusal;
pub(crate) use serves::Serves;
pub(crate) use setters::{consumer_setters, type_setters};
