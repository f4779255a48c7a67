//! The thread that sends datagrams to other processes.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use queue_core::QueueName;
use queue_core::notify::Notification;

use super::Peers;
use super::datagram::Datagram;

/// The pause after sending. What is published meanwhile is sent together.
const PAUSE: Duration = Duration::from_millis(1);

/// The most datagrams for each process at a time, with room for as many more of messages that are visible at once.
/// Notifications beyond that are lost.
const MAX_PENDING: usize = 256;

/// What is to be sent, and the thread, which is started when there is something for the first time.
pub(super) struct Outbox {
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
    /// The number and size of the messages for each queue that become visible after the same time.
    pending: BTreeMap<(QueueName, Duration), (u64, u64)>,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum Thread {
    #[default]
    NotStarted,
    Running,
    /// It is to end, or could not be started.
    Stopped,
}

impl Outbox {
    pub(super) fn new(peers: Arc<Peers>) -> Self {
        Self {
            shared: Arc::default(),
            peers,
        }
    }

    /// Sends a notification soon.
    pub(super) fn add(&self, notification: &Notification<'_>) {
        let mut state = self.shared.lock();
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
            state.add(notification);
            self.shared.changed.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        let mut state = self.shared.lock();
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

fn send_all(
    socket: &UdpSocket,
    peers: &Peers,
    pending: BTreeMap<(QueueName, Duration), (u64, u64)>,
) {
    let ports = peers.ports();
    for ((queue, visible_in), (messages, bytes)) in pending {
        let datagram = Datagram {
            queue,
            messages,
            bytes,
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
    fn next(&self) -> Option<BTreeMap<(QueueName, Duration), (u64, u64)>> {
        let idle = |state: &mut State| state.thread == Thread::Running && state.pending.is_empty();
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        match state.pending.is_empty() {
            true => None,
            false => Some(std::mem::take(&mut state.pending)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, notification: &Notification<'_>) {
        let key = (notification.queue.clone(), notification.visible_in);
        let visible = notification.visible_in.is_zero();
        let full = self.pending.len() >= MAX_PENDING << u32::from(visible);
        if full && !self.pending.contains_key(&key) {
            return;
        }
        let (messages, bytes) = self.pending.entry(key).or_default();
        *messages = messages.saturating_add(notification.messages);
        *bytes = bytes.saturating_add(notification.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_merged_and_bounded() {
        static ORDERS: QueueName = QueueName::from_static("orders");
        let mut state = State::default();
        let notification = Notification::new("here", &ORDERS).with_messages(2, 100);
        for _ in 0..1000 {
            state.add(&notification);
        }
        let merged = state.pending.get(&(ORDERS.clone(), Duration::ZERO));
        assert_eq!((merged, state.pending.len()), (Some(&(2000, 100_000)), 1));
        for second in 0..1000 {
            state.add(&notification.with_visible_in(Duration::from_secs(second)));
        }
        assert_eq!(state.pending.len(), MAX_PENDING);
        let merged = state.pending.get(&(ORDERS.clone(), Duration::ZERO));
        assert_eq!(merged, Some(&(2002, 100_100)), "what is there is merged");
        for number in 0..1000 {
            let queue = format!("queue-{number}").parse().expect("valid");
            state.add(&Notification::new("here", &queue));
        }
        assert_eq!(state.pending.len(), 2 * MAX_PENDING);
    }
}
