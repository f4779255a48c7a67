//! The processes that wait for messages: this process's socket, the table in which all are registered, those of them
//! that are known, and the format of their datagrams.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

use queue_clock::SystemClock;
use queue_core::QueueName;
use queue_core::clock::Clock as _;
use queue_core::internal::{LockExt as _, as_count};
use queue_core::notify::{LocalNotifier, Notification, Notifier as _};
use rusqlite::{Connection, Statement, params};
use tokio::sync::oneshot;

use crate::command::{Answer, Command, Port, Request};
use crate::failure::Result;

/// The pause before a registration that failed is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// The longest wait for a datagram. The socket's timeout stands still while the machine is suspended, and the age of a
/// registration does not.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The pause after an error of the socket, so that an error that persists does not occupy a processor.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// The socket and its registration, which the thread and its handle share.
pub(crate) struct Inbox {
    account: String,
    port: Port,
    commands: Sender<Command>,
    stopped: AtomicBool,
    socket: UdpSocket,
}

impl Inbox {
    /// Opens the socket, and starts the thread that publishes to `local` what it receives.
    pub(crate) fn open(
        account: &str,
        token: i64,
        commands: &Sender<Command>,
        local: Arc<LocalNotifier>,
    ) -> io::Result<Arc<Self>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let number = socket.local_addr()?.port();
        let inbox = Arc::new(Self {
            account: account.to_owned(),
            port: Port { token, number },
            commands: commands.clone(),
            stopped: AtomicBool::new(false),
            socket,
        });
        let receiver = Arc::clone(&inbox);
        thread::Builder::new()
            .name("queue-sqlite-wakeups".to_owned())
            .spawn(move || receiver.run(&local))?;
        Ok(inbox)
    }

    /// Withdraws the registration and ends the thread.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Nobody waits for the answer. A registration that stays is removed when it is too old.
        drop(self.ask(Request::Withdraw { port: self.port }));
        // Wakes the thread. If the datagram is lost, the thread ends when it would renew the registration.
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number));
        drop(self.socket.send_to(&[], own));
    }

    fn run(&self, local: &LocalNotifier) {
        let mut warned = false;
        let clock = SystemClock::new();
        let mut renew_at = clock.monotonic();
        let mut buffer = [0; LONGEST];
        while !self.stopped.load(Ordering::Acquire) {
            let now = clock.monotonic();
            if now >= renew_at {
                let done = self.register(&mut warned);
                renew_at = now + if done { RENEWAL } else { AGAIN };
                continue;
            }
            match self.receive(&mut buffer, LONGEST_WAIT.min(renew_at - now)) {
                Ok(Some(datagram)) => local.publish(&datagram.notification(&self.account)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "failed to receive a wake-up");
                    thread::sleep(ERROR_PAUSE);
                }
            }
        }
    }

    /// Waits for a datagram; returns `None` if none has come in time, or it is not for this process.
    fn receive(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<Option<Datagram>> {
        self.socket.set_read_timeout(Some(timeout))?;
        match self.socket.recv(buffer) {
            Ok(length) => Ok(Datagram::read(&buffer[..length], self.port.token)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Registers the port, or renews its registration.
    fn register(&self, warned: &mut bool) -> bool {
        let answer = self.ask(Request::Register { port: self.port });
        match answer.blocking_recv() {
            Ok(Ok(_)) => true,
            Ok(Err(failure)) => {
                if !std::mem::replace(warned, true) {
                    let file = &self.account;
                    tracing::warn!(%file, ?failure, "failed to register for wake-ups by other processes; polling until a later try succeeds");
                }
                false
            }
            // The backend is closed.
            Err(_) => false,
        }
    }

    fn ask(&self, request: Request) -> oneshot::Receiver<Result<Answer>> {
        let (command, answer) = Command::new(request);
        // If the writer has ended, the reply is dropped.
        drop(self.commands.send(command));
        answer
    }
}

/// The interval at which a process renews its registration.
const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// The age at which a registration counts as left behind by a process that has ended, in microseconds.
const EXPIRY: i64 = 3 * RENEWAL.as_micros() as i64;

/// The most registrations: processes beyond that find messages by polling.
const MAX: i64 = 256;

/// The statements on the table of the processes that wait for messages.
pub(crate) struct Consumers<'c> {
    read: Statement<'c>,
    register: Statement<'c>,
    remove: Statement<'c>,
    remove_old: Statement<'c>,
    /// The store time of the last read.
    read_at: i64,
    warned: bool,
}

impl<'c> Consumers<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> Result<Self> {
        Ok(Self {
            read: connection.prepare(
                "SELECT token, port FROM queue_consumers WHERE renewed_at BETWEEN ?1 AND ?2
                    ORDER BY renewed_at DESC LIMIT ?3",
            )?,
            register: connection
                .prepare("INSERT OR REPLACE INTO queue_consumers VALUES (?1, ?2, ?3)")?,
            remove: connection.prepare("DELETE FROM queue_consumers WHERE token = ?1")?,
            remove_old: connection.prepare(
                "DELETE FROM queue_consumers WHERE renewed_at NOT BETWEEN ?1 AND ?2 OR token NOT IN
                    (SELECT token FROM queue_consumers ORDER BY renewed_at DESC LIMIT ?3)",
            )?,
            read_at: i64::MIN,
            warned: false,
        })
    }

    /// Returns whether registrations that were read may be too old now.
    pub(crate) fn is_outdated(&self, now: i64) -> bool {
        now.saturating_sub(self.read_at) > EXPIRY
    }

    /// Returns the registrations that are not too old, or none if they cannot be read: without them, processes poll.
    pub(crate) fn read_or_none(&mut self, now: i64) -> Vec<Port> {
        self.read_at = now;
        let read = self.read(now);
        if let Err(failure) = &read
            && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!(
                ?failure,
                "failed to read which processes to wake; they find messages by polling"
            );
        }
        read.unwrap_or_default()
    }

    fn read(&mut self, now: i64) -> Result<Vec<Port>> {
        let rows = self.read.query_map(valid(now), |row| {
            Ok(Port {
                token: row.get(0)?,
                number: row.get(1)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Registers a process or renews its registration, and removes those that are too old.
    pub(crate) fn register(&mut self, port: Port, now: i64) -> Result<()> {
        self.register
            .execute(params![port.token, port.number, now])?;
        self.remove_old.execute(valid(now))?;
        Ok(())
    }

    pub(crate) fn remove(&mut self, port: Port) -> Result<()> {
        self.remove.execute([port.token])?;
        Ok(())
    }
}

/// The parameters of the statements: the oldest and newest valid registration, and their number. A registration of the
/// future is of a time before the clock was set back.
fn valid(now: i64) -> [i64; 3] {
    [now.saturating_sub(EXPIRY), now.saturating_add(EXPIRY), MAX]
}

/// The processes that wait for messages, as far as this one knows; the writer updates them.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The token of this backend's own registration, which is left out.
    own: i64,
    ports: Mutex<Arc<[Port]>>,
}

impl Peers {
    pub(crate) fn none() -> Self {
        Self {
            own: rand::random(),
            ports: Mutex::new(Arc::new([])),
        }
    }

    pub(crate) fn set(&self, mut ports: Vec<Port>) {
        ports.retain(|port| port.token != self.own);
        *self.ports.hold() = ports.into();
    }

    pub(super) fn ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports.hold())
    }

    pub(crate) fn own(&self) -> i64 {
        self.own
    }
}

const MAGIC: &[u8] = b"QMSG\x01";
const NUMBERS: usize = 4;

/// More than the longest datagram: a queue's name has at most 63 bytes.
const LONGEST: usize = 128;

/// The contents of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) queue: QueueName,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(super) visible_in: Duration,
}

impl Datagram {
    pub(crate) fn write(&self, token: i64) -> Vec<u8> {
        let millis = self.visible_in.as_nanos().div_ceil(1_000_000);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(token.to_be_bytes());
        for number in [millis, self.messages, self.bytes] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.queue.as_str().as_bytes());
        bytes
    }

    /// Reads a datagram; returns `None` unless it is to the process with this token.
    pub(crate) fn read(datagram: &[u8], token: i64) -> Option<Self> {
        let rest = datagram.strip_prefix(MAGIC)?;
        let (numbers, name) = rest.split_at_checked(NUMBERS * 8)?;
        let mut numbers = numbers
            .chunks_exact(8)
            .map(|number| u64::from_be_bytes(number.try_into().expect("8 bytes")));
        let mut next = || numbers.next();
        if next()?.cast_signed() != token {
            return None;
        }
        let (millis, messages, bytes) = (next()?, next()?, next()?);
        Some(Self {
            queue: std::str::from_utf8(name).ok()?.parse().ok()?,
            messages,
            bytes,
            visible_in: Duration::from_millis(millis),
        })
    }

    pub(super) fn notification<'a>(&'a self, account: &'a str) -> Notification<'a> {
        Notification::new(account, &self.queue)
            .with_messages(as_count(self.messages), self.bytes)
            .with_visible_in(self.visible_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::schema;

    const MINUTE: i64 = 60_000_000;

    fn port(token: i64) -> Port {
        Port { token, number: 7 }
    }

    #[test]
    fn what_is_left_behind_is_not_used_and_is_removed() {
        let mut connection = Connection::open_in_memory().expect("open");
        schema::migrate(&mut connection, false).expect("create");
        let mut consumers = Consumers::prepare(&connection).expect("prepare");
        consumers.register(port(1), 0).expect("registered");
        consumers.register(port(2), 10 * MINUTE).expect("ok");
        assert_eq!(
            consumers.read(10 * MINUTE).expect("read"),
            [port(2), port(1)]
        );
        assert_eq!(consumers.read(16 * MINUTE).expect("read"), [port(2)]);
        assert_eq!(consumers.read(-6 * MINUTE).expect("read"), [port(1)]);

        let count = || {
            let count = "SELECT count(*) FROM queue_consumers";
            connection.query_row(count, [], |row| row.get::<_, i64>(0))
        };
        consumers.register(port(3), 16 * MINUTE).expect("ok");
        assert_eq!(count(), Ok(2), "the first is removed");
        consumers.remove(port(2)).expect("removed");
        assert_eq!(consumers.read(16 * MINUTE).expect("read"), [port(3)]);
        for token in 0..2 * MAX {
            consumers.register(port(token), 17 * MINUTE).expect("ok");
        }
        assert_eq!(count(), Ok(MAX));
    }

    #[test]
    fn only_a_datagram_with_the_token_is_read() {
        let datagram = Datagram {
            queue: "orders".parse().expect("valid"),
            messages: 3,
            bytes: 1200,
            visible_in: Duration::from_micros(1500),
        };
        let token = -7;
        let written = datagram.write(token);
        let expected = Datagram {
            visible_in: Duration::from_millis(2),
            ..datagram
        };
        assert_eq!(Datagram::read(&written, token), Some(expected));
        assert_eq!(Datagram::read(&written, 7), None);
        for length in 0..=MAGIC.len() + NUMBERS * 8 {
            assert_eq!(Datagram::read(&written[..length], token), None, "{length}");
        }
        let mut name = written.clone();
        *name.last_mut().expect("not empty") = 0xff;
        assert_eq!(Datagram::read(&name, token), None);
        let longest = "q".repeat(63).parse().expect("valid");
        let longest = Datagram {
            queue: longest,
            messages: u64::MAX,
            bytes: u64::MAX,
            visible_in: Duration::MAX,
        };
        assert!(longest.write(token).len() < LONGEST);
    }
}
