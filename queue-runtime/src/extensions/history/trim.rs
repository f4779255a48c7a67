use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use queue_core::QueueName;
use queue_core::backend::{Op, Ops};
use queue_core::internal::error_chain;

use crate::kernel::context::Context;

/// The part of a history by which it may exceed its number of entries, and the fewest entries that are worth a look.
const SHARE: usize = 20;
const FEWEST: usize = 64;

/// How many entries are deleted in one step at most.
const STEP: usize = 256;

/// The queue of a history, of which this process deletes the oldest entries now and then.
#[derive(Debug)]
pub(super) struct Trimmed {
    queue: QueueName,
    /// How many entries are kept.
    most: AtomicUsize,
    /// How many entries were made since the last look.
    made: AtomicUsize,
    is_trimming: AtomicBool,
}

impl Trimmed {
    pub(super) fn new(queue: QueueName) -> Self {
        Self {
            queue,
            most: AtomicUsize::new(0),
            // The first entry has a look at what earlier processes have left.
            made: AtomicUsize::new(usize::MAX / 2),
            is_trimming: AtomicBool::new(false),
        }
    }

    pub(super) fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The types of a queue share its history: the one that keeps the most decides.
    pub(super) fn keep_at_least(&self, most: usize) {
        self.most.fetch_max(most, Ordering::Relaxed);
    }

    /// Counts an entry that is made, and deletes the oldest ones in the background if it is time.
    pub(super) fn count(self: Arc<Self>, context: &Arc<Context>) {
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let most = self.most.load(Ordering::Relaxed);
        if made < FEWEST.max(most / SHARE) || self.is_trimming.swap(true, Ordering::Relaxed) {
            return;
        }
        self.made.store(0, Ordering::Relaxed);
        let of_service = Arc::downgrade(context);
        context.background.spawn(async move {
            let trimmed = match of_service.upgrade() {
                Some(context) => self.trim(&context, most).await,
                None => Ok(()),
            };
            self.is_trimming.store(false, Ordering::Relaxed);
            if let Err(error) = trimmed {
                // The next entries have another look.
                let (queue, error) = (&self.queue, error_chain(&error));
                tracing::warn!(%queue, error, "failed to delete the oldest entries of a history");
            }
        });
    }

    /// Deletes the oldest entries, until there are so many.
    async fn trim(&self, context: &Context, most: usize) -> queue_core::Result<()> {
        let (backend, queue) = (&context.backend, &self.queue);
        let capabilities = backend.capabilities();
        let step = STEP
            .min(capabilities.max_receive)
            .min(capabilities.max_apply);
        loop {
            let properties = context.ask(|| backend.properties(queue)).await;
            let count = match properties {
                Ok(properties) => properties.approximate_count,
                // The entry that was counted is not put yet.
                Err(error) if error.is_queue_gone() => 0,
                Err(error) => return Err(error),
            };
            let excess = count.saturating_sub(most).min(step);
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
            if oldest.is_empty() {
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
}
