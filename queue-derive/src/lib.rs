//! `#[derive(Message)]`, in the steps that thiserror's derive has:
//!
//! | step | in | out |
//! |---|---|---|
//! | `ast`, `attr` | the item | the item with its attributes read |
//! | `valid`, `key` | that | its settings, names and limits checked |
//! | `expand` | both | the impl |
//! | `fallback` | both, with problems | the errors, and a stand-in for the impl |
//!
//! `problem` holds every text that the derive can refuse something with.

mod ast;
mod attr;
mod expand;
mod fallback;
mod kebab;
mod key;
mod problem;
mod suggest;
mod valid;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

#[doc = include_str!("docs/message.md")]
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::derive(&input).into()
}
