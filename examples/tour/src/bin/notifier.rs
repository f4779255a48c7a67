//! A notifier of your own wakes listeners on other machines by a topic that you have, such as one of Azure Service Bus or
//! Event Grid, so that they need not poll. Here the topic is a channel, as in a test.
//!
//! `cargo run -p tour --bin notifier` prints
//!
//! ```text
//! on the topic: 1 message on `orders`
//! the worker handles order 7
//! ```

use std::sync::Arc;
use std::time::Duration;

use queue_runtime::notify::{Notification, Notifier, Subscriber, Subscription};
use queue_runtime::policy::ExponentialIdle;
use queue_runtime::{Message, QueueName, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

#[derive(Debug, Clone)]
struct Announcement {
    account: String,
    queue: QueueName,
    json: String,
}

/// In place of a client of the topic, whose `send` must not wait either: it has a bounded buffer, and a task that sends.
#[derive(Debug, Clone)]
struct Topic(broadcast::Sender<Announcement>);

impl Notifier for Topic {
    fn publish(&self, notification: &Notification<'_>) {
        // What nobody hears is found by the next poll.
        let _ = self.0.send(Announcement {
            account: notification.account.to_owned(),
            queue: notification.queue.clone(),
            json: notification.to_json(),
        });
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        let (account, queue) = (account.to_owned(), queue.clone());
        let mut announcements = self.0.subscribe();
        let task = tokio::spawn(async move {
            loop {
                match announcements.recv().await {
                    Ok(one) if one.account == account && one.queue == queue => {
                        let json = one.json.as_bytes();
                        if let Ok(told) = Notification::from_json(&account, &queue, json) {
                            subscriber.notified(&told);
                        }
                    }
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
        Box::new(Subscribed(task.abort_handle()))
    }
}

struct Subscribed(AbortHandle);

impl Subscription for Subscribed {
    /// While the topic is connected, and all programs that submit publish to it.
    fn is_armed(&self) -> bool {
        !self.0.is_finished()
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "orders")]
struct Order {
    number: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let topic = Topic(broadcast::channel(1000).0);
    let mut heard = topic.0.subscribe();
    let connect = || QueueService::builder(&url).notifier(Arc::new(topic.clone()));
    let (shop, worker) = (connect().connect().await?, connect().connect().await?);

    let (sender, mut handled) = mpsc::unbounded_channel();
    let handler = move |order: Received<Order>| {
        let told = sender.send(order.number);
        async move { told }
    };
    let listener = worker
        .listener(handler)
        .idle(ExponentialIdle::up_to(Duration::from_secs(3600)));
    let listener = listener.create_queue().start()?;

    shop.submit(Order { number: 7 }).await?;
    let Announcement { queue, .. } = heard.recv().await?;
    println!("on the topic: 1 message on `{queue}`");
    let number = handled.recv().await.ok_or("the listener runs")?;
    println!("the worker handles order {number}");
    listener.shutdown(Duration::from_secs(20)).await;
    Ok(())
}
