//! `#[derive(Message)]`, in the same steps as thiserror's derive:
//!
//! | step | in | out |
//! |---|---|---|
//! | `ast`, `attr` | the item | the item with its attributes parsed |
//! | `valid`, `key` | the parsed item | validated settings |
//! | `expand` | item and settings | the impl, or the errors and a placeholder impl |
//!
//! `problem` holds every error text; `names` makes the default kind and queue, and finds the name of a variant as serde
//! writes it and the known name that a misspelled one is closest to.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod ast;
mod attr;
mod expand;
mod key;
mod names;
mod problem;
mod valid;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

#[doc = include_str!("docs/message.md")]
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::derive(&input).into()
}
