use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use queue_clock::SystemClock;
use queue_core::backend::Created;
use queue_core::clock::Clock;
use queue_core::internal::LockExt as _;
use queue_core::payload_store::{ObjectPage, PayloadStore, StoredObject};
use queue_core::{Result, Timestamp};

/// A store of payloads in memory, for tests. It is shared by those who share it, and gone with the last of them.
pub struct MemoryPayloads {
    clock: Arc<dyn Clock>,
    objects: Mutex<BTreeMap<String, Object>>,
}

struct Object {
    data: Bytes,
    created: Timestamp,
}

/// The objects of a page.
const PAGE: usize = 1000;

impl MemoryPayloads {
    /// Creates an empty store with the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// Creates an empty store with this clock, which tells when an object was created.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            objects: Mutex::default(),
        }
    }
}

impl Default for MemoryPayloads {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryPayloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPayloads").finish_non_exhaustive()
    }
}

#[async_trait]
impl PayloadStore for MemoryPayloads {
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        let mut objects = self.objects.hold();
        if objects.contains_key(name) {
            return Ok(Created::Existed);
        }
        let created = self.clock.now();
        objects.insert(name.to_owned(), Object { data, created });
        Ok(Created::New)
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        let objects = self.objects.hold();
        Ok(objects.get(name).map(|object| {
            let length = object.data.len();
            let from = usize::try_from(from).unwrap_or(length).min(length);
            object
                .data
                .slice(from..length.min(from.saturating_add(max)))
        }))
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.objects.hold().remove(name);
        Ok(())
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        let start = from.map_or(Bound::Included(prefix), Bound::Excluded);
        let objects = self.objects.hold();
        let found = objects.range::<str, _>((start, Bound::Unbounded));
        let found = found.take_while(|(name, _)| name.starts_with(prefix));
        let page: Vec<_> = found
            .take(PAGE)
            .map(|(name, object)| StoredObject {
                name: name.clone(),
                size: object.data.len() as u64,
                created: object.created,
            })
            .collect();
        let next = page.last().filter(|_| page.len() == PAGE);
        Ok(ObjectPage {
            next: next.map(|last| last.name.clone()),
            objects: page,
        })
    }
}
