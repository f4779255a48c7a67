//! What every message passes through, whatever extensions a program uses.
//!
//! | module | contents |
//! |---|---|
//! | `listener/` | dequeue tasks, handler tasks, blocking threads, the watchdog, the phase |
//! | `tower` | layers around handlers, and services as handlers |
//! | `receive/` | `accept`, and a message's way from the backend to the handler: `fetch`, `incoming`, `attempts`, `admission` |
//! | `settlement/` | what becomes of a message that has ended: decided by a plan, and written |
//! | `send/` | `submit`, `submit_all`, follow-ups |
//! | `attachment` | data that is stored with a message, beside its body |
//! | `context` | the state that everything of one service shares |
//! | `repeat` | repeats of failed storage operations: their pauses and their end; missing queues, created once for all that need them |
//! | `settings` | timeouts and thresholds, and their precedence |
//! | `served` | the kind of message that the listeners of each queue handle |
//! | `lease/` | the lease, its transitions (`machine`), its renewal, what a stale receipt proves (`proof`), and the storage's time |
//! | `claim` | a claim of a result store, renewed while its work goes on |
//! | `background`, `delay_queue` | the background thread; items by due time |
//! | `stop_on_drop` | a guard of what runs |
//! | `bucket` | tokens that come at a rate |
//! | `parts` | what is known of a backend that hands out messages in parts |
//! | `processor` | the processor time of this process |
//! | `policy/` | when to poll again, when to handle a message again, when to repeat a storage operation |
//! | `observe/` | metrics and spans for the application's monitoring, and the counts of storage transactions |
//! | `notify/` | wake-ups: notifiers, and when a consumer heeds them |
//! | `clock`, `panic` | waiting until a deadline, and a minimum time between steps; caught panics |

pub(crate) mod attachment;
pub(crate) mod background;
pub(crate) mod bucket;
pub(crate) mod claim;
pub mod clock;
pub(crate) mod context;
pub(crate) mod delay_queue;
pub(crate) mod lease;
pub(crate) mod listener;
pub mod notify;
pub(crate) mod observe;
pub mod panic;
pub(crate) mod parts;
pub(crate) mod policy;
pub(crate) mod processor;
pub(crate) mod receive;
pub(crate) mod repeat;
pub mod send;
pub(crate) mod served;
pub mod settings;
pub(crate) mod settlement;
pub(crate) mod stop_on_drop;
pub mod tower;
