//! The records of the accounts as one result store: each record is on the account of its key.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;
use queue_core::backend::{PageMark, Swap, SwapOutcome};
use queue_core::clock::Clock;
use queue_core::idempotency::{
    Claim, ClaimOutcome, ClaimStatus, Forgotten, MAX_RECORDS, Owner, Recorded, RecordedPage,
    ResultStore, StoreIdentity, Swept, WorkKey,
};
use queue_core::internal::{record_mark, record_start};
use queue_core::{Error, ErrorKind, Operation, Result};

use crate::placement::shard_of_key;

/// The stores among which records are spread: those of the accounts with which the shards began, whatever a resize adds.
#[derive(Debug, Clone)]
pub(crate) struct ShardedResults {
    stores: Arc<[Arc<dyn ResultStore>]>,
}

impl ShardedResults {
    pub(crate) fn new(stores: Vec<Arc<dyn ResultStore>>) -> Self {
        Self {
            stores: stores.into(),
        }
    }

    /// The store of a key's record.
    fn home(&self, key: &WorkKey) -> &dyn ResultStore {
        let number = self.stores.len() as u32;
        &*self.stores[shard_of_key(key.key(), number) as usize]
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl ResultStore for ShardedResults {
    fn clock(&self) -> Arc<dyn Clock> {
        self.stores[0].clock()
    }

    /// The claim of a message may be on another storage than the message.
    fn identity(&self) -> Option<&StoreIdentity> {
        None
    }

    async fn swap(&self, swap: &Swap) -> Result<SwapOutcome> {
        self.home(&swap.key).swap(swap).await
    }

    async fn begin(&self, key: &WorkKey, owner: Owner, lease: Duration) -> Result<ClaimOutcome> {
        self.home(key).begin(key, owner, lease).await
    }

    async fn renew(&self, key: &WorkKey, claim: Claim, lease: Duration) -> Result<ClaimStatus> {
        self.home(key).renew(key, claim, lease).await
    }

    async fn finish(
        &self,
        key: &WorkKey,
        claim: Claim,
        result: Bytes,
        retention: Duration,
    ) -> Result<ClaimStatus> {
        self.home(key).finish(key, claim, result, retention).await
    }

    async fn release(&self, key: &WorkKey, claim: Claim) -> Result<()> {
        self.home(key).release(key, claim).await
    }

    async fn sweep(&self) -> Result<Swept> {
        // One that fails holds up no other.
        let (mut all, mut failed) = (Swept::default(), None);
        for store in &*self.stores {
            match store.sweep().await {
                Ok(swept) => {
                    all.removed += swept.removed;
                    all.more |= swept.more;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(all), Err)
    }

    async fn list(
        &self,
        scope: Option<&str>,
        from: Option<&PageMark>,
        max: usize,
    ) -> Result<RecordedPage> {
        let most = max.clamp(1, MAX_RECORDS);
        let pages = self.stores.iter().map(|one| one.list(scope, from, most));
        let pages = try_join_all(pages).await?;
        // Where the first of the pages ends, the next page of all starts.
        let mut until = None;
        for next in pages.iter().filter_map(|page| page.next.as_ref()) {
            let next = record_start(scope, Some(next))?;
            until = Some(until.map_or(next.clone(), |until| next.min(until)));
        }
        let now = pages[0].now;
        let mut records: Vec<Recorded> = pages.into_iter().flat_map(|page| page.records).collect();
        records.sort_by(|a, b| a.key.cmp(&b.key));
        let place = |key: &WorkKey| (key.scope().into(), key.key().into());
        records.retain(|record| {
            until
                .as_ref()
                .is_none_or(|until| place(&record.key) < *until)
        });
        if let Some(first) = records.get(most) {
            until = Some(place(&first.key));
            records.truncate(most);
        }
        let mut page = RecordedPage::new(records, now);
        if let Some(until) = until {
            // The key of a damaged record may not be text, and sorts elsewhere as text.
            if from.is_some() && until <= record_start(scope, from)? {
                let error = Error::new(ErrorKind::Corrupt, Operation::Results);
                return Err(error.with_detail("the records of the shards are not in order"));
            }
            page.next = Some(record_mark(&until.0, &until.1));
        }
        Ok(page)
    }

    async fn find(&self, key: &WorkKey) -> Result<Option<Recorded>> {
        self.home(key).find(key).await
    }

    async fn forget(&self, key: &WorkKey) -> Result<Forgotten> {
        self.home(key).forget(key).await
    }
}
