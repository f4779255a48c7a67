//! Wake-ups between the processes that use a file: a process that has put messages sends a datagram to each process
//! that waits for some.
//!
//! ```text
//! process that waits                        the file                process that puts
//! inbox ── port, every 5 minutes ──► table `consumers` ──► writer, when another process has committed
//!   ▲                                                                │
//!   │                                                                ▼ peers
//!   └──────────── datagram to 127.0.0.1: queue, number ────────── outbox ◄── publish, after the commit
//! ```
//!
//! | file | has authority over |
//! |---|---|
//! | `consumers` | the table |
//! | `inbox` | the socket that receives, and its registration |
//! | `outbox` | what is sent, and how often |
//! | `datagram` | the format |
//!
//! Datagrams are never trusted: they only cause a receive. A process in another network namespace, such as a
//! container's, gets none and finds messages by polling.

mod consumers;
mod datagram;
mod inbox;
mod outbox;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use queue_core::QueueName;
use queue_core::notify::{Notification, Notifier, Subscriber, Subscription};

use self::inbox::Inbox;
use self::outbox::Outbox;
use super::command::Command;
use crate::notify::{LocalNotifier, Writers};

pub(super) use consumers::{Consumers, Port};

/// The notifier of one backend.
pub(super) struct FileNotifier {
    /// The URI of the file.
    account: String,
    peers: Arc<Peers>,
    local: Arc<LocalNotifier>,
    outbox: Outbox,
    inbox: Mutex<Receiving>,
    /// Whether the inbox is registered.
    registered: Arc<AtomicBool>,
}

/// The processes that wait for messages, as far as this one knows. The writer updates them.
#[derive(Debug)]
pub(super) struct Peers {
    /// The token of this backend's own registration, which is left out.
    own: i64,
    any: AtomicBool,
    ports: Mutex<Arc<[Port]>>,
}

/// The inbox, which is opened with the first subscription.
enum Receiving {
    /// With the channel to the writer, which registers the inbox.
    NotYet(Sender<Command>),
    Open(Inbox),
    /// It could not be opened, or the backend is closed.
    Never,
}

struct Subscribed {
    _local: Box<dyn Subscription>,
    registered: Arc<AtomicBool>,
}

impl FileNotifier {
    pub(super) fn new(account: String, peers: Arc<Peers>, commands: Sender<Command>) -> Self {
        Self {
            account,
            outbox: Outbox::new(Arc::clone(&peers)),
            peers,
            local: Arc::new(LocalNotifier::new(Writers::OtherProcesses)),
            inbox: Mutex::new(Receiving::NotYet(commands)),
            registered: Arc::default(),
        }
    }

    /// Withdraws the registration and stops the threads.
    pub(super) fn stop(&self) {
        self.outbox.stop();
        let receiving = std::mem::replace(&mut *self.receiving(), Receiving::Never);
        if let Receiving::Open(inbox) = receiving {
            inbox.stop();
        }
    }

    /// Opens the inbox unless it is open. Without it, consumers poll.
    fn open(&self) {
        let mut receiving = self.receiving();
        let Receiving::NotYet(commands) = &*receiving else {
            return;
        };
        let local = Arc::clone(&self.local);
        let registered = Arc::clone(&self.registered);
        let opened = Inbox::open(&self.account, self.peers.own, commands, local, registered);
        *receiving = match opened {
            Ok(inbox) => Receiving::Open(inbox),
            Err(error) => {
                let file = &self.account;
                tracing::warn!(%file, %error, "no socket for wake-ups by other processes; polling instead");
                Receiving::Never
            }
        };
    }

    fn receiving(&self) -> MutexGuard<'_, Receiving> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for FileNotifier {
    fn publish(&self, notification: &Notification<'_>) {
        self.local.publish(notification);
        if self.peers.any() {
            self.outbox.add(notification);
        }
    }

    fn subscribe(
        &self,
        account: &str,
        queue: &QueueName,
        subscriber: Arc<dyn Subscriber>,
    ) -> Box<dyn Subscription> {
        self.open();
        Box::new(Subscribed {
            _local: self.local.subscribe(account, queue, subscriber),
            registered: Arc::clone(&self.registered),
        })
    }
}

impl Subscription for Subscribed {
    fn is_armed(&self) -> bool {
        self.registered.load(Ordering::Acquire)
    }
}

impl Peers {
    pub(super) fn none() -> Self {
        Self {
            own: rand::random(),
            any: AtomicBool::new(false),
            ports: Mutex::new(Arc::new([])),
        }
    }

    pub(super) fn set(&self, mut ports: Vec<Port>) {
        ports.retain(|port| port.token != self.own);
        self.any.store(!ports.is_empty(), Ordering::Release);
        *self.ports.lock().unwrap_or_else(PoisonError::into_inner) = ports.into();
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for FileNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileNotifier")
            .field("file", &self.account)
            .field("peers", &self.peers.ports().len())
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}
