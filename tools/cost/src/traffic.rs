//! What messages cost, from their submission to their completion.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use queue_clock::TokioClock;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::meter::TransactionCounts;
use queue_runtime::notify::{
    LocalNotifier, Notification, Notifier, Subscriber, Subscription, Writers,
};
use queue_runtime::payloads::MemoryPayloads;
use queue_runtime::{Failure, QueueName, QueueService, Received};

use crate::listeners::{Sample, in_simulated_time};

/// How messages are submitted; they are received with others, up to what a receive can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Each message by a call of its own, and received by itself.
    OneByOne,
    /// Each message by a call of its own.
    Single,
    /// So many messages by one call, each a message of the storage.
    Together(u32),
    /// So many messages by one call, packed.
    Packed(u32),
}

/// What messages have used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// The storage transactions.
    pub(crate) transactions: TransactionCounts,
    /// The messages that a notifier has published to announce them.
    pub(crate) notifications: usize,
}

/// Submits so many messages of this payload, has a listener complete them on a queue in memory that settles as Azure does,
/// and returns what that used.
pub(crate) fn deliver(sending: Sending, messages: u32, payload: usize) -> Result<Used, Failure> {
    in_simulated_time(run(sending, messages, payload))
}

async fn run(sending: Sending, messages: u32, payload: usize) -> Result<Used, Failure> {
    let clock = Arc::new(TokioClock::new());
    let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new(clock.clone()));
    let notifier = Arc::new(CountingNotifier::default());
    let service = QueueService::with_backend(backend)
        .clock(clock.clone())
        // With a store beside it, the storage is not atomic, as Azure is not.
        .payloads(Arc::new(MemoryPayloads::with_clock(clock)))
        .notifier(notifier.clone())
        .on_current_runtime();
    let service = service.connect().await?;
    service.queue::<Sample>().any().create().await?;
    let before = service.meter().total();
    let calls = match sending {
        Sending::OneByOne | Sending::Single => 1,
        Sending::Together(calls) | Sending::Packed(calls) => calls,
    };
    let mut submitted = 0;
    while submitted < messages {
        let next = submitted + calls.min(messages - submitted);
        let submission = service.submit_all(samples(submitted..next, payload));
        match sending {
            Sending::Packed(_) => submission.packed().await?,
            _ => submission.await?,
        };
        submitted = next;
    }
    let mut listener = service.listener(async |_: Received<Sample>| {});
    if sending == Sending::OneByOne {
        listener = listener.batch(1);
    }
    let completed = listener
        .until_empty()
        .start()?
        .drained()
        .await
        .info
        .completed;
    if completed != messages as usize {
        return Err(format!("{completed} of {messages} messages were completed").into());
    }
    let used = Used {
        transactions: service.meter().total().since(&before),
        notifications: notifier.published.load(Ordering::Relaxed),
    };
    service.shutdown(Duration::ZERO).await;
    Ok(used)
}

/// Returns messages whose payloads have about `payload` bytes.
pub(crate) fn samples(numbers: Range<u32>, payload: usize) -> impl Iterator<Item = Sample> {
    let around = r#"{"number":1000,"filling":""}"#.len();
    let length = payload.saturating_sub(around);
    let filling = "0123456789abcdef".repeat(length.div_ceil(16))[..length].to_owned();
    numbers.map(move |number| Sample {
        number,
        filling: filling.clone(),
    })
}

/// Counts what is published.
#[derive(Debug)]
struct CountingNotifier {
    published: AtomicUsize,
    local: LocalNotifier,
}

impl Default for CountingNotifier {
    fn default() -> Self {
        Self {
            published: AtomicUsize::new(0),
            local: LocalNotifier::new(Writers::OtherProcesses),
        }
    }
}

impl Notifier for CountingNotifier {
    fn publish(&self, notification: &Notification<'_>) {
        self.published.fetch_add(1, Ordering::Relaxed);
        self.local.publish(notification);
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        self.local.subscribe(account, queue, subscriber)
    }
}

#[cfg(test)]
mod tests {
    use queue_runtime::meter::TransactionKind;

    use super::*;

    #[test]
    fn a_message_takes_three_transactions_alone_and_a_tenth_of_one_in_a_pack() {
        let used = |sending| deliver(sending, 1_000, 200).expect("delivered");
        let alone = used(Sending::OneByOne).transactions;
        // The last receives, which find the queue empty, count too.
        assert!((3_000..3_010).contains(&alone.total()), "{alone}");
        let single = used(Sending::Single);
        assert_eq!(single.transactions.of(TransactionKind::Put), 1_000);
        assert_eq!(single.transactions.of(TransactionKind::Delete), 1_000);
        assert_eq!(single.notifications, 1_000);
        let together = used(Sending::Together(100));
        assert_eq!(together.transactions.total(), single.transactions.total());
        assert_eq!(together.notifications, 10);
        let packed = used(Sending::Packed(100));
        assert!(
            packed.transactions.total() <= 100,
            "{}",
            packed.transactions
        );
        assert_eq!(packed.notifications, 10);
    }
}
