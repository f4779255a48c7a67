//! What lies in a store of payloads, under which names:
//!
//! | name | is |
//! |---|---|
//! | `identity` | what tells this store from another: references name it |
//! | `data/NAME` | a payload |
//! | `done/NAME` | the mark of a payload whose message is done, or was never submitted |
//! | `kept/NAME` | the mark of a payload that has outlived its message's time to live, on a poison queue |

use std::sync::Arc;

use bytes::Bytes;
use queue_core::backend::{AttachmentPart, Created};
use queue_core::payload_store::PayloadStore;
use queue_core::wire::StoredPayload;
use queue_core::{Error, ErrorKind, Operation, Result};
use tokio::sync::OnceCell;

/// The bytes that are read at once.
const PART: usize = 4 * 1024 * 1024;

const IDENTITY: &str = "identity";
pub(super) const DATA: &str = "data/";
pub(super) const DONE: &str = "done/";
pub(super) const KEPT: &str = "kept/";

/// A store of payloads, and what identifies it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) store: Arc<dyn PayloadStore>,
    identity: OnceCell<u128>,
}

impl Place {
    pub(crate) fn new(store: Arc<dyn PayloadStore>) -> Self {
        Self {
            store,
            identity: OnceCell::new(),
        }
    }

    /// Returns what identifies the store, which gets it with its first payload.
    pub(super) async fn begun(&self) -> Result<u128> {
        let begin = || async {
            // Before anything is read: the place for objects may not exist yet.
            let identity = rand::random::<u128>();
            let text = format!("{identity:032x}");
            match self.store.create(IDENTITY, text.into()).await? {
                Created::New => Ok(identity),
                Created::Existed => self.read_identity().await?.ok_or_else(no_identity),
            }
        };
        self.identity.get_or_try_init(begin).await.copied()
    }

    /// Returns what identifies the store.
    pub(super) async fn identity(&self) -> Result<u128> {
        let read = || async { self.read_identity().await?.ok_or_else(no_identity) };
        self.identity.get_or_try_init(read).await.copied()
    }

    /// Returns what identifies the store, if anything was ever stored in it.
    pub(super) async fn known_identity(&self) -> Result<Option<u128>> {
        match self.identity.get() {
            Some(identity) => Ok(Some(*identity)),
            None => self.read_identity().await,
        }
    }

    async fn read_identity(&self) -> Result<Option<u128>> {
        let Some(text) = self.store.read(IDENTITY, 0, 64).await? else {
            return Ok(None);
        };
        let identity = std::str::from_utf8(&text).ok();
        let identity = identity.and_then(|text| u128::from_str_radix(text.trim(), 16).ok());
        let corrupt = || {
            let detail = format!("its object `{IDENTITY}` does not have 32 hexadecimal digits");
            wrong_store(detail)
        };
        identity.map(Some).ok_or_else(corrupt)
    }

    pub(super) async fn store(&self, payload: &StoredPayload, data: Bytes) -> Result<()> {
        match self.store.create(&data_of(payload), data).await? {
            Created::New => Ok(()),
            Created::Existed => Err(Error::new(ErrorKind::Conflict, Operation::StoreData)
                .with_detail(format!("there is an object `{}` already", data_of(payload)))),
        }
    }

    /// Reads a part of a payload, or that its message is done. Only what is not in the right store is missing.
    ///
    /// # Errors
    /// Also if the payload is in another store.
    pub(super) async fn part(&self, payload: &StoredPayload, from: u64) -> Result<AttachmentPart> {
        self.check(payload, self.identity().await?)?;
        if from == 0 && self.is_done(payload).await? {
            return Ok(AttachmentPart::Done);
        }
        let name = data_of(payload);
        if let Some(part) = self.store.read(&name, from, PART).await? {
            return Ok(AttachmentPart::Data(part));
        }
        // Somebody else may have settled a copy since, or have replaced the whole store.
        let identity = self.read_identity().await?.ok_or_else(no_identity)?;
        self.check(payload, identity)?;
        if self.is_done(payload).await? {
            return Ok(AttachmentPart::Done);
        }
        let again = self.store.read(&name, from, PART).await?;
        Ok(again.map_or(AttachmentPart::Missing, AttachmentPart::Data))
    }

    fn check(&self, payload: &StoredPayload, identity: u128) -> Result<()> {
        if payload.store == identity {
            return Ok(());
        }
        let wanted = payload.store;
        Err(wrong_store(format!(
            "the payload is in the store `{wanted:032x}`, and this one is `{identity:032x}`"
        )))
    }

    pub(super) async fn is_done(&self, payload: &StoredPayload) -> Result<bool> {
        Ok(self.store.read(&done_of(payload), 0, 1).await?.is_some())
    }

    pub(super) async fn is_kept(&self, payload: &StoredPayload) -> Result<bool> {
        Ok(self.store.read(&kept_of(payload), 0, 1).await?.is_some())
    }

    pub(super) async fn has_data(&self, payload: &StoredPayload) -> Result<bool> {
        Ok(self.store.read(&data_of(payload), 0, 1).await?.is_some())
    }

    /// Marks a payload as one that nobody needs.
    pub(super) async fn mark_done(&self, payload: &StoredPayload) -> Result<()> {
        let mark = Bytes::from_static(b"done");
        self.store.create(&done_of(payload), mark).await.map(drop)
    }

    /// Marks a payload as one of a message without a time to live.
    pub(super) async fn mark_kept(&self, payload: &StoredPayload) -> Result<()> {
        let mark = Bytes::from_static(b"kept");
        self.store.create(&kept_of(payload), mark).await.map(drop)
    }

    /// Deletes a payload that has a mark, or was never referred to. What fails is left to a sweep.
    pub(super) async fn discard(&self, payload: &StoredPayload) {
        let name = data_of(payload);
        if let Err(error) = self.store.delete(&name).await {
            tracing::warn!(name, %error, "failed to delete a payload; a sweep will");
        }
    }
}

pub(super) fn data_of(payload: &StoredPayload) -> String {
    format!("{DATA}{}", payload.name)
}

fn done_of(payload: &StoredPayload) -> String {
    format!("{DONE}{}", payload.name)
}

pub(super) fn kept_of(payload: &StoredPayload) -> String {
    format!("{KEPT}{}", payload.name)
}

fn no_identity() -> Error {
    wrong_store(format!("it has no object `{IDENTITY}`"))
}

/// It may be restored, or the service may be pointed to the right one.
fn wrong_store(detail: String) -> Error {
    let error = Error::new(ErrorKind::Storage, Operation::FetchData);
    error.with_detail(format!("this is not the store of the payloads: {detail}"))
}
