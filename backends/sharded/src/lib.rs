//! One logical queue over several: each queue is spread over shards, which are queues of one or several storages, for more
//! requests a second than one queue or one account carries.
//!
//! ```
//! # use std::sync::Arc;
//! # use queue_core::QueueName;
//! # use queue_core::backend::{Backend, Metadata, NewMessage};
//! # use queue_core::clock::Clock;
//! # use queue_sharded::Shards;
//! # async fn connect(accounts: Vec<Arc<dyn Backend>>, clock: Arc<dyn Clock>) -> queue_core::Result<()> {
//! let backend = Shards::new(accounts, 4, clock).connect().await?;
//! let orders = QueueName::from_static("orders");
//! backend.create_queue(&orders, &Metadata::new()).await?; // creates orders-s0 to orders-s3
//! backend.put(&orders, NewMessage::new("one")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `shards` | connecting |
//! | `backend` | the backend: which shard an operation is about |
//! | `queues`, `look` | queues as wholes: create, delete, clear; count, peek, browse |
//! | `apply` | several operations on any shards |
//! | `receive` | asking the shards in turn, and what slow and failing ones are spared |
//! | `placement` | which shard a message is put on |
//! | `names` | the names of shards, and the ids of their messages |
//! | `descriptor`, `topology` | which shards there are, and for how long a program believes that |
//! | `resize`, `lock` | changing that, one program at a time |
//! | `capabilities`, `errors`, `pause` | what all accounts can do; errors that name the shard; growing pauses |

mod apply;
mod backend;
mod capabilities;
mod descriptor;
mod errors;
mod lock;
mod look;
mod names;
mod pause;
mod placement;
mod queues;
mod receive;
mod resize;
mod shards;
mod topology;

pub use backend::ShardedBackend;
pub use names::{MAX_SHARDS, shard_of};
pub use resize::{Resized, RetiredShard};
pub use shards::Shards;
