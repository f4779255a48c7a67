//! A photo mosaic: a picture made of many small ones, by four queues, three roles and a client.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | uploads, asks, follows, downloads |
//! | [`messages`] | what goes over the queues |
//! | [`roles`] | job broker, job controller, image processor |
//! | [`embedded`] | all roles in one process |
//! | [`records`] | how requests stand: records that are created once |
//! | [`library_store`] | tile libraries: uploaded once, described once |
//! | [`store`], [`blob`] | blobs and their names |
//! | `azure` | blobs in a storage account; with the feature `azure` |
//! | [`picture`] | source and tiles in, slices, mosaics out: pure functions of their input |

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
