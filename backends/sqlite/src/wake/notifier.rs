//! The notifier, which opens the inbox and the outbox when they are needed.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use queue_core::QueueName;
use queue_core::internal::LockExt as _;
use queue_core::internal::debug_fields;
use queue_core::notify::{
    LocalNotifier, Notification, Notifier, Subscriber, Subscription, Writers,
};

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::peers::Peers;
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
    /// With the channel to the writer, which registers the inbox.
    NotYet(Sender<Command>),
    Open(Arc<Inbox>),
    /// It could not be opened, or the backend is closed.
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

    /// Opens the inbox unless it is open. Without it, consumers poll.
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
        // Never armed: whether datagrams arrive from every process that puts messages cannot be known.
        self.local.subscribe(account, queue, subscriber)
    }
}

debug_fields!(FileNotifier { account });
