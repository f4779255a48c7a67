//! Photo mosaics, pictures made of many small ones, by four queues, three roles and a client.
//!
//! | module | contents |
//! |---|---|
//! | [`client`] | submits a job, waits for the mosaic, downloads it |
//! | [`intake`] | the job broker's entrance: records a request, uploads its pictures, submits it |
//! | [`output`] | the file of a mosaic |
//! | [`cleaning`] | removes blobs that are no longer needed |
//! | [`messages`] | the messages on the queues |
//! | [`roles`] | job broker, job controller, image processor |
//! | [`embedded`] | all roles in one process |
//! | [`cost`] | what idle listeners cost, in simulated time |
//! | [`records`] | status records of requests, each created once |
//! | [`library_store`] | tile libraries: uploaded once, loaded once in each process |
//! | [`store`], [`blob`] | blobs and their names |
//! | `links` | refuses symbolic links in a folder of blobs |
//! | `azure` | blobs in an Azure Storage account (feature `azure`) |
//!
//! Everything about pictures is in the package `pictures`: from a source picture and tiles to slices and a mosaic.

#[cfg(feature = "azure")]
pub mod azure;
pub mod blob;
pub mod cleaning;
pub mod client;
pub mod cost;
pub mod embedded;
pub mod intake;
pub mod library_store;
mod links;
pub mod messages;
mod object_error;
pub mod output;
pub mod records;
pub mod roles;
pub mod store;
