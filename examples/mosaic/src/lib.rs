//! Photo mosaics, pictures made of many small ones, by four queues, three roles and a client.
//!
//! | module | contents |
//! |---|---|
//! | [`workflow`] | messages, roles, client: how the framework is used. Read this first |
//! | [`storage`] | blobs, and the records and tile libraries in them |
//! | [`output`] | the file of a mosaic |
//! | `web` | the page of the job broker, with the feature `web` |
//! | [`cli`] | the command line |
//!
//! Everything about pictures is in the package `pictures`: from a source picture and tiles to slices and a mosaic.

pub mod cli;
pub mod output;
pub mod storage;
#[cfg(feature = "web")]
pub mod web;
pub mod workflow;
