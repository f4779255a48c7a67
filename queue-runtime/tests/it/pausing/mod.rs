//! Queues that an operator pauses for everybody.

mod fixture;
mod listeners;
mod queue;
