//! What processes do with packs, and why a message of a pack ran twice.

mod causes;
mod observed;

pub use causes::{Causes, Marks, explain};
pub use observed::Observed;
