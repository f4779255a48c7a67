//! A photo mosaic: a picture made of many small ones, by four queues, three roles and a client.
//!
//! | module | what |
//! |---|---|
//! | [`client`] | uploads, asks, follows, downloads |
//! | [`messages`] | what goes over the queues |
//! | [`roles`] | job broker, job controller, image processor |
//! | [`embedded`] | all roles in one process |
//! | [`ledger`] | how requests stand: records that are created once |
//! | [`shelf`] | tile libraries: uploaded once, described once |
//! | [`store`], [`blob`] | blobs and their names |
//! | `azure` | blobs in a storage account; with the feature `azure` |
//! | [`picture`] | source and tiles in, slices, mosaics out: pure functions of their input |

#[cfg(feature = "azure")]
pub mod azure;
pub mod blob;
pub mod client;
pub mod embedded;
pub mod ledger;
pub mod messages;
pub mod picture;
pub mod roles;
pub mod shelf;
pub mod store;
mod told;
