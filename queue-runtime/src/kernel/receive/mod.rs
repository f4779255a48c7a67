//! Receiving: `backend → wire → envelope → message → handler → disposition → backend`.
//!
//! | file | does | next |
//! |---|---|---|
//! | `fetch` | receives messages and starts to renew their leases | `incoming` |
//! | `send_time` | when a receive was sent, from which the leases of what it returns count | |
//! | `incoming` | parses the body and judges the attempts (`attempts`) | `admission` |
//! | `admission` | decides whether the message gets an attempt, and decodes it | `idempotent` |
//! | `data` | before decoding, fetches the data of an event that is attached to its message | |
//! | `idempotent` | claims the message's key in a result store, if there is one | `delivery`, or the listener |
//! | `batch/` | has messages handled several at a time | |
//! | `waiting` | has a message wait, without counting an attempt: for its data or the claim of its key, or in the parking room for room, its turn or a rate limit | |
//! | `received`, `progress`, `delivery`, `handler` | the application's view of the message, its checkpoints | `../settlement/` |
//! | `call` | a handler with its type erased, its calls, and layers or services that say when they are ready | |
//! | `consumer` | how the messages of a queue are received and settled, of which types they are, and the methods that `accept` and the builder of listeners share | |
//!
//! `accept` runs the steps of receiving for one message; the listener for many.

mod accept;
mod admission;
mod attempts;
mod batch;
mod call;
mod consumer;
mod data;
mod delivery;
mod fetch;
mod handler;
mod idempotent;
mod incoming;
mod progress;
mod received;
mod send_time;
mod waiting;

pub use crate::kernel::served::KindMismatch;
pub(crate) use crate::kernel::settlement::{
    End, Handled, OnPoison, Settling, body_unhandled, outcome,
};
pub use crate::kernel::settlement::{Ended, OnError, Poisoned, Rider, SettleErrorKind, Settled};
pub use accept::{Accept, AcceptError, AcceptErrorKind, AcceptMany, Messages};
pub(crate) use admission::{Refusal, admit, can_decode_early, decode, is_admissible};
pub(crate) use attempts::{Tally, believe};
pub(crate) use batch::longest;
pub use batch::{Batch, BatchDisposition, BatchIter, Batching, IntoBatchDisposition, batch};
pub use call::Work;
pub(crate) use call::{
    Around, Call, Ending, Erased, ErasedHandler, Prepared, Readiness, Ready, ReadyAround,
    ReadyService, Seat, Transact, Unfit,
};
pub(crate) use consumer::{
    Caller, Consumer, Idempotency, MissingQueue, Options, Serves, consumer_setters, type_setters,
};
pub(crate) use data::{expanded_size, fetch_data, lacks_data};
pub use delivery::{CompleteAllError, Delivery, SettleError};
pub(crate) use fetch::{fetch, known_threshold, open, refresh};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use handler::HandlerFuture;
pub use handler::{Blocking, Handler, HandlerWith, blocking};
pub(crate) use idempotent::claim;
pub(crate) use incoming::{Fetched, Incoming, MessageShared, Meta};
pub use progress::{CheckpointError, CheckpointErrorKind, MAX_CHECKPOINT};
pub use queue_core::IntoDisposition;
pub use received::Received;
pub(crate) use send_time::SendTime;
pub(crate) use waiting::{Parked, ParkingRoom, can_wait_outside, park, put_back_after};
