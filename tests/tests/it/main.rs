//! What holds for more than one package.

pub mod accepted;
mod derive;
mod extension;
mod folder_engine;
mod golden;
mod guarantees;
mod pages;
mod trees;
