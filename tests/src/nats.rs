//! Starting a NATS server.

use std::io::{BufRead as _, BufReader, Error};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::azurite::lasting_port;

/// A running NATS server: `nats-server` in the path, or the program that `NATS_SERVER` names, killed when dropped.
#[derive(Debug)]
pub struct NatsServer {
    port: u16,
    process: Child,
}

/// Has the server take a free port.
const ANY_PORT: &str = "-1";

/// How long a server may take until it is ready: only one that hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

impl NatsServer {
    /// Starts a server on a free port of the loopback interface; blocks until it accepts connections.
    ///
    /// # Errors
    /// If the program does not run, or if it exits or is not ready within a minute; then with its output.
    pub fn start() -> Result<Self, Error> {
        Self::launch(ANY_PORT)
    }

    /// Starts a server on a port that stays free while it is killed, so that it can [start
    /// again](Self::start_again).
    ///
    /// # Errors
    /// The errors of [`start`](Self::start), or if no port is free.
    pub fn restartable() -> Result<Self, Error> {
        Self::launch(&lasting_port()?.to_string())
    }

    fn launch(port: &str) -> Result<Self, Error> {
        let process = spawn(port)?;
        // From here on the process is killed if anything fails.
        let mut server = Self { port: 0, process };
        server.until_ready()?;
        Ok(server)
    }

    fn until_ready(&mut self) -> Result<(), Error> {
        let log = self.process.stderr.take().expect("it is piped");
        self.port = listening(&lines(log), PATIENCE)?;
        Ok(())
    }

    /// Returns the URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the process.
    #[must_use]
    pub fn process(&self) -> &Child {
        &self.process
    }

    /// Kills the server, unless it has been killed.
    ///
    /// # Errors
    /// The operating system's errors.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    /// Starts a [restartable](Self::restartable) server again on the same port, after it was [killed](Self::kill).
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_again(&mut self) -> Result<(), Error> {
        self.process = spawn(&self.port.to_string())?;
        self.until_ready()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // A kill fails only if the server has ended.
        let _ = self.kill();
    }
}

/// Starts the program.
fn spawn(port: &str) -> Result<Child, Error> {
    let program = std::env::var_os("NATS_SERVER").unwrap_or_else(|| "nats-server".into());
    let started = Command::new(&program)
        .args(["-a", "127.0.0.1", "-p", port])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    started.map_err(|error| {
        let program = program.display();
        Error::other(format!(
            "failed to start {program}: {error}; install the NATS server, or set NATS_SERVER"
        ))
    })
}

/// Reads the log on a thread, to its end, because the server would wait when it writes to a full pipe.
fn lines(log: ChildStderr) -> Receiver<Result<String, Error>> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).split(b'\n') {
            let line = line.map(|line| String::from_utf8_lossy(&line).into_owned());
            let is_last = line.is_err();
            // Nobody receives the lines of a server that is ready.
            let _ = sender.send(line);
            if is_last {
                return;
            }
        }
    });
    lines
}

/// Waits until the log says that the server is ready, and returns its port.
fn listening(lines: &Receiver<Result<String, Error>>, patience: Duration) -> Result<u16, Error> {
    let started = Instant::now();
    let (mut port, mut said) = (None, String::new());
    loop {
        let left = patience.saturating_sub(started.elapsed());
        let line = lines.recv_timeout(left).map_err(|error| {
            let what = match error {
                RecvTimeoutError::Disconnected => "exited before it was ready".to_owned(),
                RecvTimeoutError::Timeout => format!("is not ready after {patience:?}"),
            };
            Error::other(format!("the NATS server {what}: {said}"))
        })??;
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            port = address
                .rsplit(':')
                .next()
                .and_then(|port| port.parse().ok());
        }
        if line.contains("Server is ready")
            && let Some(port) = port
        {
            return Ok(port);
        }
        said.push_str(&line);
        said.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTING: &str = "[7] 2026/11/22 14:00:00.000000 [INF] Starting nats-server";

    /// Returns what was found in a log that ends so.
    fn found(log: &[&str]) -> Result<u16, String> {
        let (sender, lines) = channel();
        for line in log {
            sender.send(Ok((*line).to_owned())).expect("received");
        }
        drop(sender);
        listening(&lines, PATIENCE).map_err(|error| error.to_string())
    }

    #[test]
    fn the_port_is_read_from_the_log() {
        let port = found(&[
            STARTING,
            "[7] 2026/11/22 14:00:00.000001 [INF] Listening for client connections on 127.0.0.1:4242",
            "[7] 2026/11/22 14:00:00.000002 [INF] Server is ready",
        ]);
        assert_eq!(port, Ok(4242));
    }

    #[test]
    fn the_log_is_told_if_the_server_exits() {
        let said = "[7] [FTL] Error listening on port: 127.0.0.1:1";
        let expected = format!("the NATS server exited before it was ready: {said}\n");
        assert_eq!(found(&[said]), Err(expected));
    }

    #[test]
    fn a_server_that_says_nothing_more_is_not_waited_for_without_end() {
        let (sender, lines) = channel();
        sender.send(Ok(STARTING.to_owned())).expect("received");
        let error = listening(&lines, Duration::ZERO).expect_err("not ready");
        let expected = format!("the NATS server is not ready after 0ns: {STARTING}\n");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_unreadable_log_is_an_error() {
        let (sender, lines) = channel();
        sender.send(Err(Error::other("no text"))).expect("received");
        let error = listening(&lines, PATIENCE).expect_err("unreadable");
        assert_eq!(error.to_string(), "no text");
    }
}
