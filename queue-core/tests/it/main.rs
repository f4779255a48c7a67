//! The wire format: as the documentation shows it, and against everything that may stand in a queue.

mod design_examples;
mod wire;
