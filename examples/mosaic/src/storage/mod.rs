//! Blobs, in a folder or in an Azure Storage account, and what the workflow keeps in them.
//!
//! | module | contents |
//! |---|---|
//! | [`records`] | status records of requests, each created once |
//! | [`library_store`] | tile libraries: uploaded once, loaded once in each process |
//! | [`cleaning`] | removes blobs that are no longer needed |
//! | [`store`], [`blob`] | blobs and their names |
//! | `links` | refuses symbolic links in a folder of blobs |
//! | `azure` | blobs in an Azure Storage account (feature `azure`) |

#[cfg(feature = "azure")]
pub mod azure;
pub mod blob;
pub mod cleaning;
pub mod library_store;
mod links;
mod object_error;
pub mod records;
pub mod store;
