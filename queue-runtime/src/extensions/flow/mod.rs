//! How fast, and in which order, listeners handle messages, beyond the room that they have.
//!
//! | module | contents |
//! |---|---|
//! | `lanes` | listeners of several queues that share their room by weight |
//! | `shared_room` | the room of lanes, and which of them is next |
//! | `keys` | messages of one key, one at a time |
//! | `rate` | how many handlers start in a time |
//! | `breaker` | the circuit breaker |

pub(crate) mod breaker;
pub(crate) mod keys;
pub(crate) mod lanes;
pub(crate) mod rate;
pub(crate) mod shared_room;
