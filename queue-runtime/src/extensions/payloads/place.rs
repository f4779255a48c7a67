//! What lies in a payload store, under which names:
//!
//! | name | is |
//! |---|---|
//! | `identity` | what tells this store from another: references name it |
//! | `data/NAME` | a payload |
//! | `done/NAME` | the mark of a payload whose message is done, or was never submitted |
//! | `kept/NAME` | the mark of a payload that has outlived its message's time to live, on a poison queue |

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use queue_core::backend::{AttachmentPart, Created};
use queue_core::clock::Clock;
use queue_core::internal::{LockExt as _, hex};
use queue_core::payload_store::PayloadStore;
use queue_core::wire::StoredPayload;
use queue_core::{Error, ErrorKind, Operation, Outcome, Result};

use crate::kernel::attachment::PayloadIdentity;

/// The bytes that are read at once.
const PART: usize = 4 * 1024 * 1024;

/// How long the identity of the store is believed. The name of a container that is deleted is blocked for longer.
const BELIEVED: Duration = Duration::from_secs(30);

/// What tells a store from another, and from a folder or container that is none.
pub(crate) const IDENTITY: &str = "identity";
pub(super) const DATA: &str = "data/";
pub(super) const DONE: &str = "done/";
pub(super) const KEPT: &str = "kept/";

const DONE_MARK: &[u8] = b"done";
const KEPT_MARK: &[u8] = b"kept";

/// A payload store, and what identifies it.
///
/// The identity is read again after each error of the store, and when it is no longer [believed](BELIEVED). A process that
/// has seen the identity never gives the store another: what lacks the identity is not the store, but has taken its
/// place.
#[derive(Debug)]
pub(crate) struct PayloadPlace {
    pub(super) store: Arc<dyn PayloadStore>,
    pub(super) clock: Arc<dyn Clock>,
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    identity: u128,
    /// Until when the identity is believed, on the monotonic clock.
    until: Duration,
}

impl PayloadPlace {
    pub(crate) fn new(store: Arc<dyn PayloadStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            clock,
            known: Mutex::default(),
        }
    }

    /// Returns what identifies the store, which gets it with its first payload.
    pub(super) async fn begun(&self) -> Result<u128> {
        let identity = self.identity().await;
        if identity.is_ok() || self.known.hold().is_some() {
            return identity;
        }
        self.noted(self.store.prepare().await)?;
        let identity = format!("{:032x}", rand::random::<u128>());
        self.noted(self.store.create(IDENTITY, identity.into()).await)?;
        // The identity that is there now counts, whoever was first.
        self.identity().await
    }

    /// Returns what identifies the store.
    pub(super) async fn identity(&self) -> Result<u128> {
        let now = self.clock.monotonic();
        if let Some(known) = self.known.hold().filter(|known| now < known.until) {
            return Ok(known.identity);
        }
        self.known_identity().await?.ok_or_else(no_identity)
    }

    /// Reads what identifies the store, if anything was ever stored in it.
    pub(super) async fn known_identity(&self) -> Result<Option<u128>> {
        let until = self.clock.monotonic().saturating_add(BELIEVED);
        let Some(text) = self.read(IDENTITY, 0, 64).await? else {
            return match *self.known.hold() {
                Some(_) => Err(no_identity()),
                None => Ok(None),
            };
        };
        let identity = std::str::from_utf8(&text).ok().and_then(hex);
        let identity = identity.ok_or_else(|| {
            let length = text.len();
            wrong_store(format!(
                "its object `{IDENTITY}` has {length} bytes, which are not 32 hexadecimal digits"
            ))
        })?;
        *self.known.hold() = Some(Known { identity, until });
        Ok(Some(identity))
    }

    fn noted<T>(&self, answer: Result<T>) -> Result<T> {
        if answer.is_err() {
            self.doubt();
        }
        answer
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        self.noted(self.store.read(name, from, max).await)
    }

    pub(super) async fn store(&self, payload: &StoredPayload, data: Bytes) -> Result<()> {
        let name = data_of(payload);
        match self.noted(self.store.create(&name, data.clone()).await)? {
            Created::New => Ok(()),
            // Created by the same request, which was carried out twice.
            Created::Existed if self.holds(&name, &data).await? => Ok(()),
            Created::Existed => Err(Error::new(ErrorKind::Conflict, Operation::StoreData)
                .with_detail(format!("there is another object `{name}` already"))),
        }
    }

    async fn holds(&self, name: &str, data: &[u8]) -> Result<bool> {
        let mut rest = data;
        loop {
            let from = (data.len() - rest.len()) as u64;
            let part = self.read(name, from, PART).await?;
            let Some(after) = part.as_deref().and_then(|part| rest.strip_prefix(part)) else {
                return Ok(false);
            };
            if after.len() == rest.len() {
                return Ok(after.is_empty());
            }
            rest = after;
        }
    }

    /// Reads a part of a payload, or that its message is done. A payload is missing only if the right store lacks it.
    ///
    /// # Errors
    /// The store's error, or that the payload is in another store.
    pub(super) async fn part(&self, payload: &StoredPayload, from: u64) -> Result<AttachmentPart> {
        self.check(payload).await?;
        if from == 0 && self.is_done(payload).await? {
            return Ok(AttachmentPart::Done);
        }
        let name = data_of(payload);
        if let Some(part) = self.read(&name, from, PART).await? {
            return Ok(AttachmentPart::Data(part));
        }
        // Somebody else may have settled a copy since, or have replaced the whole store.
        self.doubt();
        self.check(payload).await?;
        if self.is_done(payload).await? {
            return Ok(AttachmentPart::Done);
        }
        let again = self.read(&name, from, PART).await?;
        if again.is_none() {
            self.doubt();
            self.check(payload).await?;
        }
        Ok(again.map_or(AttachmentPart::Missing, AttachmentPart::Data))
    }

    async fn check(&self, payload: &StoredPayload) -> Result<()> {
        let identity = self.identity().await?;
        if payload.store == identity {
            return Ok(());
        }
        let wanted = payload.store;
        Err(wrong_store(format!(
            "the payload is in the payload store `{wanted:032x}`, and this service has the payload store `{identity:032x}`"
        )))
    }

    pub(super) async fn is_done(&self, payload: &StoredPayload) -> Result<bool> {
        self.has_mark(&done_of(payload), DONE_MARK).await
    }

    pub(super) async fn is_kept(&self, payload: &StoredPayload) -> Result<bool> {
        self.has_mark(&kept_of(payload), KEPT_MARK).await
    }

    /// Whether there is a mark. Another object of the mark's name may be another program's answer.
    async fn has_mark(&self, name: &str, mark: &[u8]) -> Result<bool> {
        match self.read(name, 0, 64).await? {
            None => Ok(false),
            Some(found) if found == mark => Ok(true),
            Some(found) => {
                self.doubt();
                let length = found.len();
                Err(wrong_store(format!(
                    "its object `{name}` has {length} bytes, which are no mark"
                )))
            }
        }
    }

    pub(super) async fn has_data(&self, payload: &StoredPayload) -> Result<bool> {
        Ok(self.read(&data_of(payload), 0, 1).await?.is_some())
    }

    /// Marks a payload as one that nobody needs.
    pub(super) async fn mark_done(&self, payload: &StoredPayload) -> Result<()> {
        self.mark(&done_of(payload), DONE_MARK).await
    }

    /// Marks a payload as one of a message without a time to live.
    pub(super) async fn mark_kept(&self, payload: &StoredPayload) -> Result<()> {
        self.mark(&kept_of(payload), KEPT_MARK).await
    }

    async fn mark(&self, name: &str, mark: &'static [u8]) -> Result<()> {
        let created = self.store.create(name, Bytes::from_static(mark)).await;
        if self.noted(created)? == Created::New {
            return Ok(());
        }
        // Another program may have answered that the mark exists.
        let marked = self.has_mark(name, mark).await;
        if marked.map_err(|error| error.with_outcome(Outcome::Unknown))? {
            return Ok(());
        }
        self.doubt();
        Err(Error::new(ErrorKind::Storage, Operation::StoreData)
            .with_outcome(Outcome::Unknown)
            .with_detail(format!(
                "the object `{name}` was said to exist, and is not there"
            )))
    }

    /// Deletes a payload that has a mark, or was never referred to; what fails is left to a sweep.
    pub(super) async fn discard(&self, payload: &StoredPayload) {
        let name = data_of(payload);
        if let Err(error) = self.noted(self.store.delete(&name).await) {
            tracing::warn!(name, %error, "failed to delete a payload; a sweep will delete the payload");
        }
    }
}

impl PayloadIdentity for PayloadPlace {
    fn doubt(&self) {
        if let Some(known) = &mut *self.known.hold() {
            known.until = Duration::ZERO;
        }
    }
}

fn data_of(payload: &StoredPayload) -> String {
    format!("{DATA}{}", payload.name)
}

fn done_of(payload: &StoredPayload) -> String {
    format!("{DONE}{}", payload.name)
}

fn kept_of(payload: &StoredPayload) -> String {
    format!("{KEPT}{}", payload.name)
}

fn no_identity() -> Error {
    wrong_store(format!("it has no object `{IDENTITY}`"))
}

/// The store may be restored, or the service may be pointed to the right store.
fn wrong_store(detail: String) -> Error {
    let error = Error::new(ErrorKind::Storage, Operation::FetchData);
    error.with_detail(format!("this is not the store of the payloads: {detail}"))
}
