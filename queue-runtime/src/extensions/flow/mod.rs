//! How fast, and in which order, listeners handle messages, beyond the room that they have.
//!
//! | module | contents |
//! |---|---|
//! | `lanes` | listeners of several queues that share their room by weight |
//! | `keys` | messages of one key, one at a time: a door |

mod keys;
pub(crate) mod lanes;
