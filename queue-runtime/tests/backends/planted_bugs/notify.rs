//! Bugs in a notifier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use queue_core::QueueName;
use queue_core::clock::BoxFuture;
use queue_core::conformance::notify as suite;
use queue_core::conformance::notify::{Arming, Harness, Medium};
use queue_core::notify::{Notification, Notifier, Subscriber, Subscription};
use queue_runtime::notify::{LocalNotifier, Writers};

use super::{fails, planted};
use crate::threads;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    None,
    TellsNobody,
    ForgetsTheNumber,
    ForgetsTheSize,
    IgnoresTheQueue,
    IgnoresTheAccount,
    DropsTheDelay,
    TellsOneOnly,
    NeverEnds,
    ReachesItselfOnly,
    IsClogged,
    IsNotArmed,
}

fn notices(test: suite::Test, bug: Bug) -> bool {
    fails(|| suite::run(&BuggyHarness(bug), test))
}

planted! { for every test:
    TellsNobody => a_notification_tells_messages_and_bytes another_client_is_reached;
    ForgetsTheNumber => a_notification_tells_messages_and_bytes another_client_is_reached;
    ForgetsTheSize => a_notification_tells_messages_and_bytes;
    IgnoresTheQueue => other_queues_and_accounts_are_told_apart;
    IgnoresTheAccount => other_queues_and_accounts_are_told_apart;
    DropsTheDelay => what_becomes_visible_later_is_announced_with_its_delay;
    TellsOneOnly => who_takes_nothing_leaves_the_messages_to_others
        messages_for_several_consumers_reach_several;
    NeverEnds => a_subscription_that_is_dropped_is_over;
    ReachesItselfOnly => another_client_is_reached;
    IsClogged => many_notifications_do_no_harm;
    IsNotArmed => subscriptions_are_armed_as_promised;
}

struct BuggyHarness(Bug);

/// A notifier with one planted bug. Clones are the same notifier.
#[derive(Debug, Clone)]
struct Buggy {
    bug: Bug,
    inner: Arc<LocalNotifier>,
    published: Arc<AtomicU32>,
}

/// Says that it takes all messages.
struct Greedy(Arc<dyn Subscriber>);

struct Subscribed {
    bug: Bug,
    inner: Option<Box<dyn Subscription>>,
}

impl Buggy {
    fn new(bug: Bug) -> Self {
        Self {
            bug,
            inner: Arc::new(LocalNotifier::new(Writers::ThisProcess)),
            published: Arc::default(),
        }
    }
}

impl Notifier for Buggy {
    fn publish(&self, notification: &Notification<'_>) {
        const ORDERS: &QueueName = &QueueName::from_static("orders");

        let published = self.published.fetch_add(1, Ordering::Relaxed);
        let mut notification = *notification;
        match self.bug {
            Bug::TellsNobody => return,
            Bug::IsClogged if published > 1000 => return,
            Bug::ForgetsTheNumber => notification.messages = 1,
            Bug::ForgetsTheSize => notification.bytes = 0,
            Bug::IgnoresTheQueue => notification.queue = ORDERS,
            Bug::IgnoresTheAccount => notification.account = "any",
            Bug::DropsTheDelay => notification.visible_in = Duration::ZERO,
            _ => {}
        }
        self.inner.publish(&notification);
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        mut subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        if self.bug == Bug::TellsOneOnly {
            subscriber = Arc::new(Greedy(subscriber));
        }
        let account = match self.bug {
            Bug::IgnoresTheAccount => "any",
            _ => account,
        };
        let inner = self.inner.subscribe(account, queue, subscriber);
        Box::new(Subscribed {
            bug: self.bug,
            inner: Some(inner),
        })
    }
}

impl Subscriber for Greedy {
    fn notified(&self, notification: &Notification<'_>) -> usize {
        self.0.notified(notification);
        usize::MAX
    }
}

impl Subscription for Subscribed {
    fn is_armed(&self) -> bool {
        let inner = self.inner.as_ref().expect("until it is dropped");
        self.bug != Bug::IsNotArmed && inner.is_armed()
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        let inner = self.inner.take();
        if self.bug == Bug::NeverEnds {
            std::mem::forget(inner);
        }
    }
}

#[async_trait]
impl Harness for BuggyHarness {
    async fn open(&self) -> Box<dyn Medium> {
        Box::new(Buggy::new(self.0))
    }

    fn block_on(&self, test: BoxFuture<'_, ()>) {
        threads::block_on(test);
    }
}

#[async_trait]
impl Medium for Buggy {
    fn client(&self) -> Arc<dyn Notifier> {
        Arc::new(self.clone())
    }

    async fn second_client(&self) -> Arc<dyn Notifier> {
        match self.bug {
            Bug::ReachesItselfOnly => Arc::new(Self::new(self.bug)),
            _ => self.client(),
        }
    }

    fn arming(&self) -> Arming {
        Arming::Always
    }
}
