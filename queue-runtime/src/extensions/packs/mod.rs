//! Packs on the receiving side: a backend that returns the items of a pack as messages of their own.
//!
//! Everything above the backend `Packs` sees items only: each is received, leased, renewed and settled like any
//! message. A pack that was received is *open* in this process until all its items are gone. Items that cannot be
//! returned yet wait in the process.
//!
//! ```text
//!            received                    completed, or moved to the poison queue
//! waiting ─────────────► held ─────────────────────────────► gone
//!    │                    │
//!    │ max hold, stopping │ put back, checkpoint, lease ended, max hold
//!    └────────────────────┴──► moved: a message of its own
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `backend` | which calls are about items, and which go to the storage as they are; items on the pages of a queue |
//! | `open` | the state of an open pack and its items; which packs of a queue are open, and how many items a message of it has |
//! | `receive` | opening a pack, and returning its items |
//! | `settle` | operations on an item, alone and beside others |
//! | `delete` | deleting an item; several of a pack in one operation |
//! | `leave` | an item that becomes a message of its own, giving a pack back, and what is due: ended leases of items, and the longest time for which a pack is held |
//!
//! An atomic storage records deleted items beside their pack, in the step that settles them. On storages that are not
//! atomic, a pack is deleted with its last item, and which items are gone before is written into the pack's header with
//! the next renewal of its lease: a crash repeats at most the items of one renewal.
//!
//! Nothing condemns an item before it ran alone: a pack that comes back after a receive of which nothing was recorded is
//! split into messages before any of its items is handled.

mod backend;
mod delete;
mod leave;
mod open;
mod receive;
mod settle;

pub(crate) use backend::Packs;
