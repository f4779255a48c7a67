//! Starting a NATS server.

use std::io::{BufRead, BufReader, Error};
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running NATS server: `nats-server` in the path, or the program that `NATS_SERVER` names. It is killed when this is
/// dropped.
#[derive(Debug)]
pub struct NatsServer {
    port: u16,
    process: Child,
}

/// Has the server take a free port.
const ANY_PORT: &str = "-1";

impl NatsServer {
    /// Starts a server on a free port of the loopback interface. Blocks until it accepts connections.
    ///
    /// # Errors
    /// If the program does not run, or if it exits; then with its output.
    pub fn start() -> Result<Self, Error> {
        let (process, port) = launch(ANY_PORT)?;
        Ok(Self { port, process })
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
    /// Those of the operating system.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    /// Starts the server again on the same port, after it was [killed](Self::kill).
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_again(&mut self) -> Result<(), Error> {
        (self.process, _) = launch(&self.port.to_string())?;
        Ok(())
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // It fails only if the server has ended.
        let _ = self.kill();
    }
}

/// Starts a server, and waits until it accepts connections. Returns its port.
fn launch(port: &str) -> Result<(Child, u16), Error> {
    let program = std::env::var_os("NATS_SERVER").unwrap_or_else(|| "nats-server".into());
    let started = Command::new(&program)
        .args(["-a", "127.0.0.1", "-p", port])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut process = started.map_err(|error| {
        let program = program.display();
        Error::other(format!(
            "failed to start {program}: {error}; install the NATS server, or set NATS_SERVER"
        ))
    })?;
    let mut log = BufReader::new(process.stderr.take().expect("it is piped"));
    match listening(&mut log)? {
        Ok(port) => {
            read_on(log);
            Ok((process, port))
        }
        Err(said) => {
            let ended = process.wait()?;
            let told = format!("the NATS server exited before it listened ({ended}): {said}");
            Err(Error::other(told))
        }
    }
}

/// Reads the port from the log when the server is ready, or returns the log if it ends before.
fn listening(log: &mut impl BufRead) -> Result<Result<u16, String>, Error> {
    let (mut port, mut said) = (None, String::new());
    for line in log.lines() {
        let line = line?;
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            port = address
                .rsplit(':')
                .next()
                .and_then(|port| port.parse().ok());
        }
        if line.contains("Server is ready")
            && let Some(port) = port
        {
            return Ok(Ok(port));
        }
        said.push_str(&line);
        said.push('\n');
    }
    Ok(Err(said))
}

/// Reads the rest of the log, because the server would wait when it writes to a full pipe.
fn read_on(mut log: BufReader<ChildStderr>) {
    // It ends with the server; nobody needs the rest.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_the_log() {
        let said = "[7] 2026/11/22 14:00:00.000000 [INF] Starting nats-server\n\
                    [7] 2026/11/22 14:00:00.000001 [INF] Listening for client connections on 127.0.0.1:4242\n\
                    [7] 2026/11/22 14:00:00.000002 [INF] Server is ready\n";
        let port = listening(&mut said.as_bytes()).expect("read");
        assert_eq!(port, Ok(4242));
    }

    #[test]
    fn the_log_is_returned_if_the_server_exits() {
        let said = "[7] [FTL] Error listening on port: 127.0.0.1:1\n";
        let ended = listening(&mut said.as_bytes()).expect("read");
        assert_eq!(ended, Err(said.to_owned()));
    }
}
