use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use queue_core::backend::{BackendExt as _, Op, Ops, PutBackPlace};
use queue_core::internal::error_chain;
use queue_core::{QueueName, Result};
use tokio::sync::Mutex;

use crate::kernel::context::Context;

/// The part of a history by which it may exceed its number of entries, and the fewest entries that are worth a look.
const SHARE: usize = 20;
const FEWEST: usize = 64;

/// How many entries are deleted in one step at most.
const STEP: usize = 256;

/// For how long an entry is received so that the storage removes those before it.
const LEASE: Duration = Duration::from_secs(10);

/// The queue of a history, of which this process deletes the oldest entries now and then.
#[derive(Debug)]
pub(super) struct Trimmed {
    queue: QueueName,
    /// How many entries are kept.
    most: AtomicUsize,
    /// Whether entries expire.
    has_age: AtomicBool,
    /// How many entries were made since the last look.
    made: AtomicUsize,
    /// Held by the task that deletes.
    trimming: Arc<Mutex<()>>,
}

impl Trimmed {
    pub(super) fn new(queue: QueueName) -> Self {
        Self {
            queue,
            most: AtomicUsize::new(0),
            has_age: AtomicBool::new(false),
            // The first entry has a look at what earlier processes have left.
            made: AtomicUsize::new(usize::MAX / 2),
            trimming: Arc::default(),
        }
    }

    pub(super) fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The types of a queue share its history: the one that keeps the most decides.
    pub(super) fn keep_at_least(&self, most: usize, has_age: bool) {
        self.most.fetch_max(most, Ordering::Relaxed);
        self.has_age.fetch_or(has_age, Ordering::Relaxed);
    }

    /// Counts an entry that is made, and deletes the oldest ones in the background if it is time.
    pub(super) fn count(self: Arc<Self>, context: &Arc<Context>) {
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let most = self.most.load(Ordering::Relaxed);
        if made < FEWEST.max(most / SHARE) {
            return;
        }
        let Ok(trimming) = Arc::clone(&self.trimming).try_lock_owned() else {
            return;
        };
        self.made.store(0, Ordering::Relaxed);
        let of_service = Arc::downgrade(context);
        context.background.spawn(async move {
            let _trimming = trimming;
            let trimmed = match of_service.upgrade() {
                Some(context) => self.trim(&context, most).await,
                None => Ok(()),
            };
            if let Err(error) = trimmed {
                // The next entries have another look.
                let (queue, error) = (&self.queue, error_chain(&error));
                tracing::warn!(%queue, error, "failed to delete the oldest entries of a history");
            }
        });
    }

    /// Deletes the oldest entries, until there are so many.
    async fn trim(&self, context: &Context, most: usize) -> Result<()> {
        let (backend, queue) = (&context.backend, &self.queue);
        let capabilities = backend.capabilities();
        let step = STEP
            .min(capabilities.max_receive)
            .min(capabilities.max_apply);
        if self.has_age.load(Ordering::Relaxed) {
            self.remove_expired(context).await?;
        }
        loop {
            let excess = self.count_of(context).await?.saturating_sub(most).min(step);
            if excess == 0 {
                return Ok(());
            }
            let page = context.ask(|| backend.browse(queue, None, excess)).await?;
            let oldest = page.messages.into_iter().map(|entry| Op::Delete {
                queue: queue.clone(),
                id: entry.id,
                receipt: entry.receipt,
                moved: false,
            });
            let oldest: Ops = oldest.collect();
            // Another process may have deleted the oldest before these were read, which are then not too many.
            let excess = self.count_of(context).await?.saturating_sub(most);
            if oldest.is_empty() || excess < oldest.len() {
                return Ok(());
            }
            match backend.apply(oldest).await {
                Ok(_) => {}
                // Another process deletes the same ones.
                Err(failed) if failed.error.is_lease_gone() => return Ok(()),
                Err(failed) => return Err(failed.error),
            }
        }
    }

    async fn count_of(&self, context: &Context) -> Result<usize> {
        let properties = context
            .ask(|| context.backend.properties(&self.queue))
            .await;
        match properties {
            Ok(properties) => Ok(properties.approximate_count),
            // The entry that was counted is not put yet.
            Err(error) if error.is_queue_gone() => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Has the storage remove the entries that have expired, which would count for those that are kept: a storage may do so
    /// only at a receive. The entry that is received keeps its place.
    async fn remove_expired(&self, context: &Context) -> Result<()> {
        let (backend, queue) = (&context.backend, &self.queue);
        let received = match backend.receive(queue, 1, LEASE).await {
            Ok(received) => received,
            Err(error) if error.is_queue_gone() => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in received {
            let put_back =
                backend.put_back(queue, &entry.id, &entry.receipt, PutBackPlace::Kept, None);
            match put_back.await {
                Ok(_) => {}
                Err(error) if error.is_lease_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
