//! Starting Azurite, the emulator of Azure Storage.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead, BufReader, Error, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use tempfile::TempDir;

use crate::built;
use crate::postgres::PostgresServer;

/// A running Azurite, with queues and blobs, stopped when dropped or when the process ends, even if that is killed.
#[derive(Debug)]
pub struct Azurite {
    queues: u16,
    blobs: u16,
    accounts: String,
    program: Program,
    storage: Storage,
    process: Child,
    /// Kept open, because Azurite would fail when it writes to a closed pipe.
    output: BufReader<ChildStdout>,
    directory: TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Azurite,
    /// Our own server, which has queues alone.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    Memory,
    Files,
}

/// The key of all accounts.
pub const KEY: &str = "cXVldWUtdGVzdHMtY2FuYXJ5LWtleQ==";

/// The seconds for which an idle connection stays open. With the default of 5, a server that could not run for a few
/// seconds resets connections whose requests wait: it looks at its timers before its sockets.
const KEEP_ALIVE: &str = "3600";

/// Stops the server when its input ends.
const UNTIL_INPUT_ENDS: &str = include_str!("azurite.js");

/// If this environment variable is set, `queues serve` of this build serves in place of Azurite, for tests that need no
/// blobs; with the value `postgres` on a PostgreSQL server that the test process starts.
const SERVER: &str = "QUEUE_SERVER";

impl Azurite {
    /// Starts an Azurite with these accounts, on free ports and with its data in memory; blocks until it listens.
    ///
    /// # Errors
    /// If Azurite or Node.js is not installed, or if Azurite exits; then with its output.
    pub fn start(accounts: &[&str]) -> Result<Self, Error> {
        Self::launch(chosen(), accounts, Storage::Memory, [0, 0], TempDir::new()?)
    }

    /// Starts an Azurite with its data in files, so that it survives a [`restart`](Self::restart).
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn durable(accounts: &[&str]) -> Result<Self, Error> {
        let ports = [lasting_port()?, lasting_port()?];
        Self::launch(chosen(), accounts, Storage::Files, ports, TempDir::new()?)
    }

    /// Starts `queues serve` of this build in place of Azurite, with the queues of each account in a
    /// [`file`](Self::file).
    ///
    /// # Errors
    /// If the server is not built, or exits; then with its output.
    pub fn server(accounts: &[&str]) -> Result<Self, Error> {
        Self::launch(
            Program::Server,
            accounts,
            Storage::Files,
            [0, 0],
            TempDir::new()?,
        )
    }

    /// Starts an Azurite as [`durable`](Self::durable) does, with its files below this folder.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn durable_in(folder: &Path, accounts: &[&str]) -> Result<Self, Error> {
        let ports = [lasting_port()?, lasting_port()?];
        Self::launch(
            Program::Azurite,
            accounts,
            Storage::Files,
            ports,
            TempDir::new_in(folder)?,
        )
    }

    /// Returns the version of the Azurite that is installed.
    ///
    /// # Errors
    /// If Azurite or Node.js is not installed.
    pub fn version() -> Result<String, Error> {
        let asked = Command::new("node")
            .arg(azurite()?)
            .arg("--version")
            .output();
        let asked =
            asked.map_err(|error| Error::other(format!("failed to start node: {error}")))?;
        let version = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        if version.is_empty() {
            return Err(Error::other("Azurite does not say its version"));
        }
        Ok(version)
    }

    /// Restarts Azurite: [`stop`](Self::stop), and then [`start_again`](Self::start_again).
    ///
    /// # Errors
    /// The errors of both calls.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        self.start_again()
    }

    /// Stops Azurite: requests in flight are answered before, and connections are refused after. Blocks until the
    /// process has ended.
    ///
    /// # Errors
    /// If Azurite does not exit cleanly.
    pub fn stop(&mut self) -> Result<(), Error> {
        drop(self.process.stdin.take());
        let mut said = String::new();
        self.output.read_to_string(&mut said)?;
        let ended = self.process.wait()?;
        if ended.success() {
            Ok(())
        } else {
            let told = format!("Azurite did not exit cleanly ({ended}): {said}");
            Err(Error::other(told))
        }
    }

    /// Starts Azurite on the same ports, after it was [stopped](Self::stop). A [`durable`](Self::durable) Azurite has
    /// kept its data. Blocks until Azurite listens again.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_again(&mut self) -> Result<(), Error> {
        let ports = [self.blobs, self.queues];
        let directory = self.directory.path();
        let mut process = spawn(self.program, &self.accounts, self.storage, ports, directory)?;
        (self.output, _) = until_it_listens(&mut process)?;
        self.process = process;
        Ok(())
    }

    fn launch(
        program: Program,
        accounts: &[&str],
        storage: Storage,
        ports: [u16; 2],
        directory: TempDir,
    ) -> Result<Self, Error> {
        let accounts: Vec<_> = accounts
            .iter()
            .map(|name| format!("{name}:{KEY}"))
            .collect();
        let accounts = accounts.join(";");
        let mut process = spawn(program, &accounts, storage, ports, directory.path())?;
        let (output, (blobs, queues)) = until_it_listens(&mut process)?;
        Ok(Self {
            queues,
            blobs,
            accounts,
            program,
            storage,
            process,
            output,
            directory,
        })
    }

    /// Returns the port of the queue service on loopback.
    #[must_use]
    pub fn queue_port(&self) -> u16 {
        self.queues
    }

    /// Returns the port of the blob service on loopback.
    #[must_use]
    pub fn blob_port(&self) -> u16 {
        self.blobs
    }

    /// Returns the path of the SQLite file in which a [`server`](Self::server) has the queues of an account.
    #[must_use]
    pub fn file(&self, account: &str) -> PathBuf {
        self.directory.path().join(format!("{account}.db"))
    }

    /// Returns the URL of the account's queue service.
    #[must_use]
    pub fn queue_endpoint(&self, account: &str) -> String {
        format!("http://127.0.0.1:{}/{account}", self.queues)
    }

    /// Returns a connection string for queues and blobs, with the account key.
    #[must_use]
    pub fn connection_string(&self, account: &str) -> String {
        let (queues, blobs) = (self.queue_endpoint(account), self.blobs);
        format!(
            "DefaultEndpointsProtocol=http;AccountName={account};AccountKey={KEY};\
             QueueEndpoint={queues};BlobEndpoint=http://127.0.0.1:{blobs}/{account}"
        )
    }

    /// Returns the URL of the queue service with a shared access signature for all of its operations.
    #[must_use]
    pub fn signed_url(&self, account: &str) -> String {
        format!("{}?{}", self.queue_endpoint(account), signature(account))
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // Both calls fail only if Azurite has exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(
    program: Program,
    accounts: &str,
    storage: Storage,
    ports: [u16; 2],
    directory: &Path,
) -> Result<Child, Error> {
    let [blobs, queues] = ports.map(|port| port.to_string());
    if program == Program::Server {
        return spawn_server(accounts, storage, &queues, directory);
    }
    let mut command = Command::new("node");
    command
        .args(["-e", UNTIL_INPUT_ENDS])
        .arg(azurite()?)
        .args(["--blobPort", &blobs, "--queuePort", &queues])
        .args(["--tablePort", "0", "--silent", "--disableTelemetry"])
        .args(["--blobKeepAliveTimeout", KEEP_ALIVE])
        .args(["--queueKeepAliveTimeout", KEEP_ALIVE]);
    if storage == Storage::Memory {
        command.args(["--inMemoryPersistence", "--extentMemoryLimit", "1024"]);
    }
    command
        .current_dir(directory)
        .env("AZURITE_ACCOUNTS", accounts)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Error::other(format!("failed to start node: {error}")))
}

/// Whether our own server stands in for Azurite.
#[must_use]
pub fn is_own_server() -> bool {
    std::env::var_os(SERVER).is_some()
}

fn chosen() -> Program {
    if is_own_server() {
        Program::Server
    } else {
        Program::Azurite
    }
}

/// Starts `queues serve`, which keeps queues alone, in place of Azurite.
fn spawn_server(
    accounts: &str,
    storage: Storage,
    port: &str,
    directory: &Path,
) -> Result<Child, Error> {
    let lines = accounts.replace(':', "=").replace(';', "\n");
    std::fs::write(directory.join("accounts"), lines)?;
    let url = match storage {
        _ if std::env::var(SERVER).is_ok_and(|on| on == "postgres") => on_postgres(directory)?,
        Storage::Memory => "memory:{account}".to_owned(),
        Storage::Files => "sqlite:{account}.db".to_owned(),
    };
    Command::new(built("queues")?)
        .args(["serve", "--url", &url, "--queuePort", port])
        .args(["--accounts", "accounts", "--until-input-ends"])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Returns the URL of the schemas of a server whose files would be in this folder.
fn on_postgres(directory: &Path) -> Result<String, Error> {
    static POSTGRES: LazyLock<Result<PostgresServer, String>> = LazyLock::new(|| {
        let server = PostgresServer::builder().for_many_connections().start();
        server.map_err(|error| error.to_string())
    });
    let server = POSTGRES
        .as_ref()
        .map_err(|error| Error::other(error.clone()))?;
    let mut hasher = DefaultHasher::new();
    directory.hash(&mut hasher);
    let number = hasher.finish();
    Ok(format!(
        "{}?schema=serve_{number:x}_{{account}}",
        server.url()
    ))
}

/// Waits until the server listens; returns the rest of its output, and the ports of blobs and queues.
fn until_it_listens(process: &mut Child) -> Result<(BufReader<ChildStdout>, (u16, u16)), Error> {
    let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
    match listening(&mut output)? {
        Ok(ports) => Ok((output, ports)),
        Err(said) => {
            let ended = process.wait()?;
            let told = format!("Azurite exited before it listened ({ended}): {said}");
            Err(Error::other(told))
        }
    }
}

/// Finds a free port below the ephemeral range, which starts at 32768 or higher, so that the system does
/// not assign it to a connection while the server restarts.
///
/// # Errors
/// If none is free.
pub fn lasting_port() -> Result<u16, Error> {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let of_this_process = (std::process::id() % 500) as u16 * 20;
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports = (0..1000).map(|_| {
        let next = of_this_process.wrapping_add(TRIED.fetch_add(1, Relaxed));
        20_000 + next % 10_000
    });
    let found = ports.into_iter().find(free);
    found.ok_or_else(|| Error::other("no port from 20000 to 29999 is free"))
}

/// Reads the ports of blobs and queues from the output, or returns the output if it ends before.
fn listening(output: &mut impl BufRead) -> Result<Result<(u16, u16), String>, Error> {
    let (mut blobs, mut queues, mut said) = (None, None, String::new());
    for line in output.lines() {
        let line = line?;
        said.push_str(&line);
        if let Some((_, port)) = line.split_once("serving queues at http://127.0.0.1:") {
            // It has no blobs.
            let port = port.parse().map_err(Error::other)?;
            return Ok(Ok((0, port)));
        }
        let port = match line.split_once("successfully listen") {
            Some((_, rest)) => rest.rsplit(':').next().and_then(|port| port.parse().ok()),
            None => continue,
        };
        if line.contains("Blob service") {
            blobs = port;
        } else if line.contains("Queue service") {
            queues = port;
        }
        if let (Some(blobs), Some(queues)) = (blobs, queues) {
            return Ok(Ok((blobs, queues)));
        }
    }
    Ok(Err(said))
}

/// Finds the program: that which `AZURITE` names, or the one that `cargo xtask` installed in the target
/// directory.
fn azurite() -> Result<PathBuf, Error> {
    let found = match std::env::var_os("AZURITE") {
        Some(given) => Some(PathBuf::from(given)),
        None => {
            let this = std::env::current_exe()?;
            let installed = |folder: &Path| folder.join("azurite/node_modules/.bin/azurite");
            this.ancestors().map(installed).find(|path| path.exists())
        }
    };
    let found = found.ok_or_else(|| {
        Error::other("Azurite is not installed: `cargo xtask test` installs it, or set AZURITE to the program")
    })?;
    let told = |error| Error::other(format!("no Azurite at {}: {error}", found.display()));
    found.canonicalize().map_err(told)
}

/// Returns the query of an account signature, for all operations on queues.
#[must_use]
pub fn signature(account: &str) -> String {
    let (version, permissions, expiry) = ("2021-12-02", "rwdlacup", "2099-01-01T00:00:00Z");
    let text = format!("{account}\n{permissions}\nq\nsco\n\n{expiry}\n\nhttps,http\n{version}\n\n");
    let key = STANDARD.decode(KEY).expect("the key is Base64");
    let mut keyed = Hmac::<Sha256>::new_from_slice(&key).expect("any length is allowed");
    keyed.update(text.as_bytes());
    let signature = STANDARD.encode(keyed.finalize().into_bytes());
    let encoded = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    format!(
        "sv={version}&ss=q&srt=sco&sp={permissions}&se={}&spr={}&sig={}",
        encoded(expiry),
        encoded("https,http"),
        encoded(&signature)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_are_read_from_the_output() {
        let said = "Azurite Blob service is starting at http://127.0.0.1:0\n\
                    Azurite Blob service is successfully listening at http://127.0.0.1:41001\n\
                    Azurite Queue service is successfully listening at http://127.0.0.1:41002\n";
        let ports = listening(&mut said.as_bytes()).expect("read");
        assert_eq!(ports, Ok((41001, 41002)));
    }

    #[test]
    fn the_output_is_returned_if_azurite_exits() {
        let ended = listening(&mut "Exit due to invalid account\n".as_bytes()).expect("read");
        assert_eq!(ended, Err("Exit due to invalid account".to_owned()));
    }

    #[test]
    fn a_lasting_port_is_not_ephemeral() {
        let ports = [(); 2].map(|()| lasting_port().expect("a free port"));
        assert!(ports.iter().all(|port| (20_000..30_000).contains(port)));
        assert_ne!(ports[0], ports[1]);
    }
}
