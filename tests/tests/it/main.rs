//! What holds for more than one package.

mod derive;
mod golden;
mod guarantees;
mod layout;
