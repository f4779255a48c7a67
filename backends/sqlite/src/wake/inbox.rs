//! The thread that receives datagrams from other processes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use queue_clock::SystemClock;
use queue_core::clock::Clock as _;
use queue_core::notify::{LocalNotifier, Notifier as _};
use tokio::sync::oneshot;

use super::consumers::RENEWAL;
use super::datagram::{self, Datagram};
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
        // Wakes the thread. If this is lost, the thread ends when it would renew the registration.
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number));
        drop(self.socket.send_to(&[], own));
    }

    fn run(&self, local: &LocalNotifier) {
        let mut warned = false;
        let clock = SystemClock::new();
        let mut renew_at = clock.monotonic();
        let mut buffer = [0; datagram::MAX];
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

    /// Waits for a datagram. Returns `None` if none has come in time, or it is not for this process.
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
        // Otherwise the writer has ended, and drops the reply.
        drop(self.commands.send(command));
        answer
    }
}
