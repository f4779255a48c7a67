//! Wake-ups between processes, by LISTEN and NOTIFY.
//!
//! One connection listens for this process and announces what it has put, after the commit, because a commit with a
//! NOTIFY takes a lock of the whole server. The connection is made for the first subscription or announcement.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queue_core::QueueName;
use queue_core::internal::LockExt as _;
use queue_core::notify::{
    LocalNotifier, Notification, Notifier, Pending, Subscriber, Subscription,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::failure::{Failure, Result};
use crate::session::{Server, Session, column};
use crate::settings::{Pooling, Setting};

/// The pause after an announcement: what is published meanwhile shares the next one.
const INTERVAL: Duration = Duration::from_millis(5);

/// The pauses before a connection that was lost or refused is made again.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// An announcement that is lost in a crash of the server does not have to be written to its disk.
const NOT_DURABLE: Setting = ("synchronous_commit", "off");

const OWN_PROCESS: &str = "SELECT pg_backend_pid()";
const CHANNEL: &str = "SELECT channel($1)";
const NOTIFY: &str = "SELECT pg_notify(channel(queue), payload) FROM unnest($1::text[], $2::text[]) AS of (queue, payload)";

/// The notifier of a backend.
#[derive(Debug)]
pub(crate) struct PostgresNotifier {
    shared: Arc<Shared>,
    /// Ended with the notifier.
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    account: String,
    local: LocalNotifier,
    pending: Mutex<Pending<(QueueName, Duration)>>,
    /// The queues that are listened to until the notifier is dropped.
    topics: Mutex<HashMap<QueueName, Arc<Topic>>>,
    /// Whether the session lasts in which the server would listen.
    can_listen: bool,
    /// There is something to announce or to listen to.
    work: Notify,
    /// Whether it was told that there are no wake-ups.
    is_told: AtomicBool,
    /// The server's process of the connection.
    process: AtomicI32,
}

#[derive(Debug, Default)]
struct Topic {
    /// The server's name for the queue's notifications, once it was asked.
    channel: Mutex<Option<String>>,
    /// Whether the server has the subscription.
    is_armed: AtomicBool,
}

struct Subscribed {
    _local: Box<dyn Subscription>,
    topic: Arc<Topic>,
}

impl PostgresNotifier {
    /// Starts the task, on the current runtime.
    pub(crate) fn start(server: Arc<Server>, account: String) -> Self {
        let shared = Arc::new(Shared {
            account,
            local: LocalNotifier::default(),
            pending: Mutex::default(),
            topics: Mutex::default(),
            can_listen: server.pooling() == Pooling::Session,
            work: Notify::new(),
            is_told: AtomicBool::new(false),
            process: AtomicI32::new(0),
        });
        let mut task = JoinSet::new();
        task.spawn(run(Arc::clone(&shared), server));
        Self {
            shared,
            _task: task,
        }
    }
}

impl Notifier for PostgresNotifier {
    fn publish(&self, notification: &Notification<'_>) {
        self.shared.local.publish(notification);
        if notification.account == self.shared.account {
            let key = (notification.queue.clone(), notification.visible_in);
            self.shared.pending.hold().add(key, notification);
            self.shared.work.notify_one();
        }
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        let local = self.shared.local.subscribe(account, queue, subscriber);
        let topic = if account == self.shared.account && self.shared.can_listen {
            let mut topics = self.shared.topics.hold();
            let topic = topics.entry(queue.clone()).or_default();
            self.shared.work.notify_one();
            Arc::clone(topic)
        } else {
            // Of another storage, whose puts nobody announces here, or behind a pooler.
            Arc::default()
        };
        if !self.shared.can_listen && !self.shared.is_told.swap(true, Ordering::Relaxed) {
            warn!(
                "a pooler in transaction mode passes no wake-ups on, so messages of other processes are found by polling; \
                 to be woken, give the server's own address as `listen=HOST:PORT`"
            );
        }
        Box::new(Subscribed {
            _local: local,
            topic,
        })
    }
}

impl Subscription for Subscribed {
    fn is_armed(&self) -> bool {
        self.topic.is_armed.load(Ordering::Acquire)
    }
}

async fn run(shared: Arc<Shared>, server: Arc<Server>) {
    let mut pause = AGAIN;
    let mut is_told = false;
    loop {
        shared.work.notified().await;
        let failure = match shared.connect(&server).await {
            Ok(session) => {
                (pause, is_told) = (AGAIN, false);
                let armed = Armed(&shared);
                let failure = shared.serve(session).await;
                drop(armed);
                failure
            }
            Err(failure) => failure,
        };
        if !std::mem::replace(&mut is_told, true) {
            warn!(
                ?failure,
                "there is no connection to PostgreSQL for wake-ups; messages are found by polling until there is"
            );
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
        // To listen again.
        shared.work.notify_one();
    }
}

/// While it lives, subscriptions may be armed.
struct Armed<'s>(&'s Shared);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        let mut queues = Vec::new();
        for (queue, topic) in self.0.topics.hold().iter() {
            topic.is_armed.store(false, Ordering::Release);
            queues.push(queue.clone());
        }
        // Who relies on announcements polls again.
        for queue in queues {
            self.0.have_looked_at(&queue);
        }
    }
}

impl Shared {
    async fn connect(self: &Arc<Self>, server: &Arc<Server>) -> Result<Session> {
        let shared = Arc::clone(self);
        let notified = move |notification: &tokio_postgres::Notification| {
            if notification.process_id() != shared.process.load(Ordering::Acquire) {
                shared.hand_on(notification.channel(), notification.payload());
            }
        };
        let opened = Session::open(Arc::clone(server), Box::new(notified), &[NOT_DURABLE]);
        let mut session = opened.await?;
        let rows = session.query(OWN_PROCESS, &[]).await?;
        let row = rows.first().ok_or(Failure::Corrupt("no process id"))?;
        self.process.store(column(row, 0)?, Ordering::Release);
        Ok(session)
    }

    /// Listens and announces until the connection fails.
    async fn serve(&self, mut session: Session) -> Failure {
        loop {
            let worked = async {
                self.listen(&mut session).await?;
                self.announce(&mut session).await
            };
            let announced = match worked.await {
                Ok(announced) => announced,
                Err(failure) => return failure,
            };
            let next = async {
                if announced {
                    sleep(INTERVAL).await;
                } else {
                    self.work.notified().await;
                }
            };
            tokio::select! {
                () = next => {}
                () = session.lost() => return Failure::Closed,
            }
        }
    }

    /// Listens to the queues that are not listened to yet, and has their consumers look for what was not announced.
    async fn listen(&self, session: &mut Session) -> Result<()> {
        let topics: Vec<_> = {
            let topics = self.topics.hold();
            let unarmed = topics
                .iter()
                .filter(|(_, topic)| !topic.is_armed.load(Ordering::Acquire));
            unarmed
                .map(|(queue, topic)| (queue.clone(), Arc::clone(topic)))
                .collect()
        };
        for (queue, topic) in topics {
            let rows = session.query(CHANNEL, &[&queue.as_str()]).await?;
            let row = rows.first().ok_or(Failure::Corrupt("no channel"))?;
            let channel: String = column(row, 0)?;
            let listen = format!("LISTEN \"{}\"", channel.replace('"', "\"\""));
            *topic.channel.hold() = Some(channel);
            session.command(&listen).await?;
            topic.is_armed.store(true, Ordering::Release);
            self.have_looked_at(&queue);
        }
        Ok(())
    }

    /// Has the consumers of a queue look for messages that nobody has announced.
    fn have_looked_at(&self, queue: &QueueName) {
        let unknown = Notification::new(&self.account, queue).with_messages(usize::MAX, 0);
        self.local.publish(&unknown);
    }

    /// Announces what is pending. Returns whether there was anything.
    async fn announce(&self, session: &mut Session) -> Result<bool> {
        let pending = self.pending.hold().take();
        if pending.is_empty() {
            return Ok(false);
        }
        let (mut queues, mut payloads) = (Vec::new(), Vec::new());
        for ((queue, visible_in), count) in &pending {
            let notification = Notification::new(&self.account, queue)
                .with_messages(count.messages, count.bytes)
                .with_visible_in(*visible_in);
            queues.push(queue.as_str());
            payloads.push(notification.to_json());
        }
        session.query(NOTIFY, &[&queues, &payloads]).await?;
        Ok(true)
    }

    /// Hands a notification of another process to the subscribers.
    fn hand_on(&self, channel: &str, payload: &str) {
        let topics = self.topics.hold();
        let queue = topics
            .iter()
            .find(|(_, topic)| topic.channel.hold().as_deref() == Some(channel));
        let Some(queue) = queue.map(|(queue, _)| queue.clone()) else {
            return;
        };
        drop(topics);
        match Notification::from_json(&self.account, &queue, payload.as_bytes()) {
            Ok(notification) => self.local.publish(&notification),
            Err(error) => debug!(%queue, %error, "ignored an invalid wake-up"),
        }
    }
}
