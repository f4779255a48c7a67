//! A place for payloads that do not fit their messages, and that the storage of the messages does not keep.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use crate::backend::Created;
use crate::clock::Timestamp;
use crate::error::Result;

/// A store of objects with names, such as a container of blobs: payloads that do not fit their messages, and the marks by
/// which they are collected.
///
/// Objects are created whole, and never changed. An object that was created is there for every later call of any
/// client.
///
/// Names have up to 512 bytes: ASCII letters, digits, `-`, `_` and `.`, in segments that `/` separates and that are
/// neither empty, `.` nor `..`. No name is the folder of another name: with `a/b` there is no `a`.
///
/// # Errors
/// An [`Error`](crate::Error) with [`Outcome::NotDone`](crate::Outcome::NotDone) proves that nothing happened; with
/// [`Outcome::Unknown`](crate::Outcome::Unknown) the operation may have been carried out. A store never retries. What
/// keeps a store from answering, such as a missing container or a refused credential, is an error, and never the answer
/// that an object is not there. An answer that is not certainly the store's own, such as the page of a proxy, is an
/// error too.
///
/// # Repeated calls
/// Every operation may be repeated after an error. A `create` that is repeated may find the object of the first call.
///
/// # Cancel safety
/// An operation whose future was dropped may still be carried out.
#[async_trait]
pub trait PayloadStore: fmt::Debug + Send + Sync + 'static {
    /// Creates the place for objects, such as the container, if it does not exist. `prepare` is called before the first
    /// payload is stored, unless the place has been seen before: if a seen place is gone, every operation fails. A
    /// store without a place to create does nothing, and a store around an inner store calls the inner `prepare`.
    async fn prepare(&self) -> Result<()>;

    /// Creates an object unless there is one of this name, which is left as it is: [`Created::Existed`]. Nobody sees a
    /// part of an object. `create` never creates the place for objects.
    async fn create(&self, name: &str, data: Bytes) -> Result<Created>;

    /// Reads up to `max` bytes of an object from byte `from` on: fewer at its end only, none behind it. Returns `None` if
    /// there is certainly no object of this name.
    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>>;

    /// Deletes the object of this name, if it exists.
    async fn delete(&self, name: &str) -> Result<()>;

    /// Lists objects whose names begin with `prefix`, which is empty or ends with `/`: the first page, or the one at
    /// `from`. An object that exists throughout the listing is on exactly one page, whatever is created and deleted
    /// meanwhile. A page may be empty although another page follows.
    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage>;

    /// Lists what interrupted creations have left, such as temporary files of a folder, which [`list`](Self::list) does
    /// not show and `delete` removes by the listed names; by default nothing.
    async fn list_partial(&self) -> Result<Vec<StoredObject>> {
        Ok(Vec::new())
    }
}

/// A page of [`PayloadStore::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPage {
    /// The objects, in any order.
    pub objects: Vec<StoredObject>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// An object of a [`PayloadStore`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// The name of the object.
    pub name: String,
    /// The size of the object, in bytes.
    pub size: u64,
    /// The time when the object was created, by the store's clock.
    pub created: Timestamp,
}
