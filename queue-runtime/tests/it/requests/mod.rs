//! Requests, their replies, and the queues for replies.

mod fixture;
mod replies;
mod reply_queues;
mod unreplied;
