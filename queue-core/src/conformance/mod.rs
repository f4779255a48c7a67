mod backend;
pub use backend::*;
