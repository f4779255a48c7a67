//! Servers of queues, each in a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use queue_tests::azurite::{Azurite, KEY, signature};

use crate::Outcome;
use crate::loopback::ACCOUNT;
use crate::sqlite::Synchronous;

/// What a server of ours prints once it listens, before the port.
pub(crate) const LISTENS: &str = "serving queues at http://127.0.0.1:";

/// The program of the command line, beside this one.
const QUEUES: &str = "queues";

/// A server with one account, [`ACCOUNT`] with [`KEY`], which ends when dropped.
pub(crate) enum Serving {
    Own(Own),
    Azurite(Azurite),
}

/// Our server.
pub(crate) struct Own {
    process: Child,
    port: u16,
    /// Kept open, in case the server prints more.
    output: BufReader<ChildStdout>,
}

impl Serving {
    /// Starts `queues serve` over a new SQLite file in this folder, with `synchronous=FULL`.
    pub(crate) fn sqlite(folder: &Path) -> Outcome<Self> {
        let accounts = folder.join("accounts");
        std::fs::write(&accounts, format!("{ACCOUNT}={KEY}\n"))?;
        let program = std::env::current_exe()?.with_file_name(QUEUES);
        let mut command = Command::new(program.with_extension(std::env::consts::EXE_EXTENSION));
        let url = Synchronous::Full.url(&folder.join("served.db"));
        command
            .args(["serve", "--queuePort", "0", "--until-input-ends"])
            .args(["--url", &url, "--accounts"])
            .arg(accounts);
        Ok(Self::Own(Own::start(command)?))
    }

    /// Starts the same server over an engine that does nothing.
    pub(crate) fn nothing() -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve-nothing");
        Ok(Self::Own(Own::start(command)?))
    }

    /// Starts Azurite with its data in files in this folder, which it writes every 5 seconds.
    pub(crate) fn azurite(folder: &Path) -> Outcome<Self> {
        Ok(Self::Azurite(Azurite::durable_in(folder, &[ACCOUNT])?))
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Own(own) => own.port,
            Self::Azurite(azurite) => azurite.queue_port(),
        }
    }

    /// The URL of the account, with a shared access signature.
    pub(crate) fn signed_url(&self) -> String {
        let port = self.port();
        format!("http://127.0.0.1:{port}/{ACCOUNT}?{}", signature(ACCOUNT))
    }

    /// The process, if it is ours.
    pub(crate) fn process(&self) -> Option<u32> {
        match self {
            Self::Own(own) => Some(own.process.id()),
            Self::Azurite(_) => None,
        }
    }
}

impl Own {
    /// Starts a server, and waits until it listens.
    fn start(mut command: Command) -> Outcome<Self> {
        let name = command.get_program().display().to_string();
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("failed to start {name}: {error}"))?;
        let output = process.stdout.take().expect("it is piped");
        let mut own = Self {
            process,
            port: 0,
            output: BufReader::new(output),
        };
        let mut line = String::new();
        own.output.read_line(&mut line)?;
        let port = line.trim().strip_prefix(LISTENS);
        let port = port.ok_or_else(|| format!("{name} did not say where it listens: {line:?}"))?;
        own.port = port.parse()?;
        Ok(own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Both calls fail only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
