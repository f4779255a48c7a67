//! When the records of requests may have changed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use queue_runtime::QueueService;
use queue_runtime::notify::{Notification, Subscriber, Subscription};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use crate::storage::store::Store;
use crate::workflow::messages::{ImageRequest, ImageResponse, SliceResponse};

/// Waits for changes of the records: those that this process makes, and those that follow when messages are put on the
/// queues of roles elsewhere.
pub struct Changes {
    recorded: watch::Receiver<u64>,
    announced: Arc<Announced>,
    /// Until when what follows from a message put shortly before is recorded.
    expected_until: Option<Instant>,
    _subscriptions: Vec<Box<dyn Subscription>>,
}

/// The time in which a message that was put is mostly handled and recorded.
const EXPECTED: Duration = Duration::from_secs(1);
/// The pause between two looks for expected records.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Announced(Notify);

impl Changes {
    /// Begins to wait for changes in a store.
    #[must_use]
    pub fn new(service: &QueueService, store: &Store) -> Self {
        let announced = Arc::new(Announced::default());
        let subscriber: Arc<dyn Subscriber> = announced.clone();
        let mut subscriptions = Vec::new();
        // A controller in this process tells of what it records itself.
        if service.listeners().is_empty() {
            for queue in [
                service.queue::<ImageRequest>().any(),
                service.queue::<SliceResponse>().any(),
                service.queue::<ImageResponse>().any(),
            ] {
                subscriptions.extend(queue.subscribe(&subscriber));
            }
        }
        Self {
            recorded: store.recorded(),
            announced,
            expected_until: None,
            _subscriptions: subscriptions,
        }
    }

    /// Waits for the next change, or for this long.
    ///
    /// # Cancel safety
    /// Cancel safe: a change meanwhile ends the next wait.
    pub async fn next(&mut self, at_most: Duration) {
        let now = Instant::now();
        let expects = self.expected_until.is_some_and(|until| now < until);
        let pause = if expects { PAUSE.min(at_most) } else { at_most };
        tokio::select! {
            // The sender lives as long as the store.
            _ = self.recorded.changed() => {}
            () = self.announced.0.notified() => {
                self.expected_until = Some(Instant::now() + EXPECTED);
            }
            () = sleep(pause) => {}
        }
    }
}

impl Subscriber for Announced {
    fn notified(&self, _: &Notification<'_>) -> usize {
        self.0.notify_one();
        // `Announced` receives no messages.
        0
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}
