//! One logical queue over several: each queue is spread over shards, which are queues of one or several storages, for more
//! requests a second than one queue or one account carries.
//!
//! ```
//! # use std::sync::Arc;
//! # use queue_core::QueueName;
//! # use queue_core::backend::{Backend, BackendExt as _, Metadata, NewMessage};
//! # use queue_core::clock::Clock;
//! # use queue_sharded::Shards;
//! # async fn connect(accounts: Vec<Arc<dyn Backend>>, clock: Arc<dyn Clock>) -> queue_core::Result<()> {
//! let backend = Shards::new(4).open(accounts, clock).await?;
//! let orders = QueueName::from_static("orders");
//! backend.create_queue(&orders, &Metadata::new()).await?; // creates orders-s0 to orders-s3
//! backend.put(&orders, NewMessage::new("one")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A message's key, the `#[message(key)]` fields of its type, decides on which shard it is put; messages without a key
//! are put on the shards in turn. What does not hold across shards:
//!
//! - **Order.** Each shard by itself hands out messages in its storage's order.
//! - **One step.** Several operations are atomic only if all shards are on one storage. With several storages,
//!   operations in a row on one storage are one step, and the steps follow in order.
//! - **Names.** A queue `orders` is the queues `orders-s0`, `orders-s1` and so on, so its name can have four or five characters
//!   less.
//! - **Records.** Metadata is kept on the first storage, and a result on the storage of its key, among those with which
//!   the shards began: a resize moves none. While the first storage cannot be reached, messages are put and received
//!   for two minutes.
//! - **Transactions** of the application's own, unique keys and attachments of messages need all shards on one storage
//!   that has them. With shards, messages cannot be put by an SQL statement.
//!
//! A queue is empty if all its shards have said so. A shard that is throttled, cannot be reached, or has not answered
//! for half the visibility timeout (at least 10 s) holds up no other shard: it is left out until a growing pause of up
//! to 30 s is over. The error of a shard that is left out, which names the shard, is returned once, when the other
//! shards have no message.
//!
//! A shard that is missing, although messages are put on it, is an error of each operation that needs the shard. The
//! error of a missing shard names it, and [`Sharded::failing`](queue_core::backend::Sharded::failing) returns the error
//! between receives. A resize to the same number creates a missing shard; deleting the queue gives the shard up.
//!
//! | module | contents |
//! |---|---|
//! | `shards` | connecting; changing the number of shards, one program at a time |
//! | `backend` | the backend: which shard an operation is about, and what all accounts can do |
//! | `queues` | queues as wholes: create, delete, clear; count, peek, find, browse |
//! | `apply` | several operations on any shards |
//! | `results` | the records of the accounts as one result store |
//! | `receive`, `round` | asking the shards in turn, and leaving out slow and failing shards |
//! | `transactions` | what the application's transactions put and complete, if all shards are on one storage |
//! | `topology`, `descriptor` | which shards there are, and for how long a program trusts what it has read |
//! | `placement` | which shard a message is put on; the names of shards, the ids of their messages, and errors that name the shard |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod apply;
mod backend;
mod descriptor;
mod placement;
mod queues;
mod receive;
mod results;
mod round;
mod shards;
mod topology;
mod transactions;

pub use backend::ShardedBackend;
pub use placement::{MAX_SHARDS, shard_of};
pub use queue_core::backend::{Resized, RetiredShard};
pub use shards::Shards;
