//! Queues that are spread over shards.

mod missing;
mod resizes;
mod services;
