//! Photo mosaics, pictures made of many small ones, by four queues, three roles and a client.
//!
//! | module | contents |
//! |---|---|
//! | [`client`] | uploads the pictures, requests a mosaic, waits for it, downloads it |
//! | [`messages`] | the messages on the queues |
//! | [`roles`] | job broker, job controller, image processor |
//! | [`embedded`] | all roles in one process |
//! | [`records`] | status records of requests, each created once |
//! | [`library_store`] | tile libraries: uploaded once, loaded once in each process |
//! | [`store`], [`blob`] | blobs and their names |
//! | `azure` | blobs in an Azure Storage account (feature `azure`) |
//! | [`picture`] | from a source picture and tiles to slices and a mosaic: pure functions |

#[cfg(feature = "azure")]
pub mod azure;
pub mod blob;
pub mod client;
pub mod embedded;
pub mod library_store;
pub mod messages;
mod object_error;
pub mod picture;
pub mod records;
pub mod roles;
pub mod store;
