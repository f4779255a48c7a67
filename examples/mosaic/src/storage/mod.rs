//! Blobs, and what the workflow keeps in them.
//!
//! | module | contents |
//! |---|---|
//! | [`store`], [`blob`] | blobs, in a folder or in an Azure Storage account, and their names |
//! | [`records`] | status records of requests, each created once |
//! | [`libraries`] | tile libraries: uploaded once, loaded once in each process |
//! | [`mosaics`] | mosaics, in parts |
//! | [`cleaning`] | removes blobs that are no longer needed |

pub mod blob;
pub mod cleaning;
pub mod libraries;
pub mod mosaics;
pub mod records;
pub mod store;
