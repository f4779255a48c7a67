//! What holds for more than one package.

pub mod accepted;
mod derive;
mod golden;
mod guarantees;
mod layout;
mod modules;
mod pages;
mod trees;
