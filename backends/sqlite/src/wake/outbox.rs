//! The notifier of a file: its subscriptions, and the datagrams that it sends.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use queue_core::QueueName;
use queue_core::internal::{LockExt as _, as_u64, debug_fields};
use queue_core::notify::{
    Count, LocalNotifier, Notification, Notifier, Pending, Subscriber, Subscription, Writers,
};

use super::inbox::{Datagram, Inbox, Peers};
use crate::command::Command;

/// The notifier of one backend.
pub(crate) struct FileNotifier {
    /// The URI of the file.
    account: String,
    peers: Arc<Peers>,
    local: Arc<LocalNotifier>,
    outbox: Outbox,
    inbox: Mutex<Receiving>,
}

/// The inbox, which is opened with the first subscription.
enum Receiving {
    /// Not opened; the channel leads to the writer, which registers the inbox.
    NotYet(Sender<Command>),
    Open(Arc<Inbox>),
    /// The inbox could not be opened, or the backend is closed.
    Never,
}

impl FileNotifier {
    pub(crate) fn new(account: String, peers: Arc<Peers>, commands: Sender<Command>) -> Self {
        Self {
            account,
            outbox: Outbox::new(Arc::clone(&peers)),
            peers,
            local: Arc::new(LocalNotifier::new(Writers::OtherProcesses)),
            inbox: Mutex::new(Receiving::NotYet(commands)),
        }
    }

    /// Withdraws the registration and stops the threads.
    pub(crate) fn stop(&self) {
        self.outbox.stop();
        let receiving = std::mem::replace(&mut *self.inbox.hold(), Receiving::Never);
        if let Receiving::Open(inbox) = receiving {
            inbox.stop();
        }
    }

    /// Opens the inbox, without which consumers poll, unless it is open.
    fn open(&self) {
        let mut receiving = self.inbox.hold();
        let Receiving::NotYet(commands) = &*receiving else {
            return;
        };
        let local = Arc::clone(&self.local);
        let opened = Inbox::open(&self.account, self.peers.own(), commands, local);
        *receiving = match opened {
            Ok(inbox) => Receiving::Open(inbox),
            Err(error) => {
                let file = &self.account;
                tracing::warn!(%file, %error, "no socket for wake-ups by other processes; polling instead");
                Receiving::Never
            }
        };
    }
}

impl Notifier for FileNotifier {
    fn publish(&self, notification: &Notification<'_>) {
        self.local.publish(notification);
        // A datagram does not name the account.
        if notification.account == self.account && !self.peers.ports().is_empty() {
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
        // No subscription is armed: whether datagrams arrive from every process that puts messages cannot be known.
        self.local.subscribe(account, queue, subscriber)
    }
}

debug_fields!(FileNotifier { account });

/// The pause after sending: what is published meanwhile is sent together.
const PAUSE: Duration = Duration::from_millis(1);

/// What is to be sent, and the thread, which is started when there is something for the first time.
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    peers: Arc<Peers>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    thread: Thread,
    pending: Pending<Key>,
}

/// A queue, and when the messages become visible.
type Key = (QueueName, Duration);

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum Thread {
    #[default]
    NotStarted,
    Running,
    /// The thread is to end, or could not be started.
    Stopped,
}

impl Outbox {
    pub(crate) fn new(peers: Arc<Peers>) -> Self {
        Self {
            shared: Arc::default(),
            peers,
        }
    }

    /// Sends a notification soon.
    pub(crate) fn add(&self, notification: &Notification<'_>) {
        let mut state = self.shared.state.hold();
        if state.thread == Thread::NotStarted {
            state.thread = match self.start() {
                Ok(()) => Thread::Running,
                Err(error) => {
                    tracing::warn!(%error, "no socket or thread to wake other processes; they find messages by polling");
                    Thread::Stopped
                }
            };
        }
        if state.thread == Thread::Running {
            let key = (notification.queue.clone(), notification.visible_in);
            state.pending.add(key, notification);
            self.shared.changed.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        let mut state = self.shared.state.hold();
        state.thread = Thread::Stopped;
        self.shared.changed.notify_one();
    }

    fn start(&self) -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // A full buffer loses a notification rather than delaying the others.
        socket.set_nonblocking(true)?;
        let (shared, peers) = (Arc::clone(&self.shared), Arc::clone(&self.peers));
        let send = move || {
            while let Some(pending) = shared.next() {
                send_all(&socket, &peers, pending);
                thread::sleep(PAUSE);
            }
        };
        let name = "queue-sqlite-notify".to_owned();
        thread::Builder::new().name(name).spawn(send).map(drop)
    }
}

fn send_all(socket: &UdpSocket, peers: &Peers, pending: BTreeMap<Key, Count>) {
    let ports = peers.ports();
    for ((queue, visible_in), count) in pending {
        let datagram = Datagram {
            queue,
            messages: as_u64(count.messages),
            bytes: count.bytes,
            visible_in,
        };
        for port in &*ports {
            let to = (Ipv4Addr::LOCALHOST, port.number);
            if let Err(error) = socket.send_to(&datagram.write(port.token), to) {
                tracing::debug!(%error, "failed to wake another process");
            }
        }
    }
}

impl Shared {
    /// Waits until there is something to send. Returns `None` once the outbox is stopped.
    fn next(&self) -> Option<BTreeMap<Key, Count>> {
        let idle = |state: &mut State| state.thread == Thread::Running && state.pending.is_empty();
        let waited = self.changed.wait_while(self.state.hold(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.pending.is_empty() {
            None
        } else {
            Some(state.pending.take())
        }
    }
}
