//! A notifier that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use queue_runtime::notify::{Notification, Notifier, Subscriber, Subscription};
use queue_runtime::{QueueName, QueueService};

use crate::transactions::bank::{Bank, GUARD, begin, notice};

/// Panics at its first announcement.
#[derive(Debug, Default)]
struct Faulty {
    announced: AtomicU32,
}

struct Deaf;

impl Subscription for Deaf {
    fn is_armed(&self) -> bool {
        false
    }
}

impl Notifier for Faulty {
    fn publish(&self, _: &Notification<'_>) {
        let earlier = self.announced.fetch_add(1, Ordering::Relaxed);
        assert!(earlier > 0, "the first announcement");
    }

    fn subscribe(&self, _: &str, _: &QueueName, _: Arc<dyn Subscriber>) -> Box<dyn Subscription> {
        Box::new(Deaf)
    }
}

#[tokio::test]
async fn a_notifier_that_panics_once_is_told_of_later_transactions() {
    let mut bank = Bank::in_real_time().await;
    let faulty = Arc::new(Faulty::default());
    let service = QueueService::with_backend(Arc::new(bank.faults.clone()));
    let service = service.notifier(faulty.clone()).connect().await;
    let service = service.expect("connects");
    for transaction in 1..=3 {
        let tx = begin(&mut bank.connection);
        service.submit_within(&tx, notice("new")).expect("written");
        tx.commit().expect("committed");
        let announced = async {
            while faulty.announced.load(Ordering::Relaxed) < transaction {
                tokio::task::yield_now().await;
            }
        };
        let announced = tokio::time::timeout(GUARD, announced).await;
        announced.expect("each transaction is announced");
    }
}
