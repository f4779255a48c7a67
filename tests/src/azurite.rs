//! An Azurite of one's own.

use std::io::{BufRead, BufReader, Error, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use tempfile::TempDir;

/// Azurite, with queues and blobs. It ends when this is dropped, and when the process that holds it
/// ends, however it ends.
#[derive(Debug)]
pub struct Azurite {
    queues: u16,
    blobs: u16,
    accounts: String,
    storage: Storage,
    process: Child,
    /// It still has things to say, and would end if nobody listened.
    output: BufReader<ChildStdout>,
    directory: TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    Memory,
    Files,
}

/// The key of every account.
pub const KEY: &str = "cXVldWUtdGVzdHMtY2FuYXJ5LWtleQ==";

/// Ends the server when its input does.
const UNTIL_INPUT_ENDS: &str = include_str!("azurite.js");

impl Azurite {
    /// Starts one that has these accounts, on free ports and kept in memory, as soon as it listens.
    ///
    /// # Errors
    /// Says what is missing, or what the program said before it ended.
    pub fn start(accounts: &[&str]) -> Result<Self, Error> {
        Self::launch(accounts, Storage::Memory, [0, 0])
    }

    /// Starts one that outlasts a [`restart`](Self::restart), because it is kept in files.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn durable(accounts: &[&str]) -> Result<Self, Error> {
        Self::launch(accounts, Storage::Files, [lasting_port()?, lasting_port()?])
    }

    /// Stops it and starts it again, on the same ports, and with all that it had acknowledged if it is
    /// [`durable`](Self::durable). Requests that are under way are answered before it stops, and those
    /// that come later are not. Blocks until it listens.
    ///
    /// # Errors
    /// If it ends in another way than by closing its files, or as for [`start`](Self::start).
    pub fn restart(&mut self) -> Result<(), Error> {
        drop(self.process.stdin.take());
        let mut said = String::new();
        self.output.read_to_string(&mut said)?;
        let ended = self.process.wait()?;
        if !ended.success() {
            let told = format!("Azurite did not close its files ({ended}): {said}");
            return Err(Error::other(told));
        }
        let ports = [self.blobs, self.queues];
        let mut process = spawn(&self.accounts, self.storage, ports, self.directory.path())?;
        (self.output, _) = until_it_listens(&mut process)?;
        self.process = process;
        Ok(())
    }

    fn launch(accounts: &[&str], storage: Storage, ports: [u16; 2]) -> Result<Self, Error> {
        let directory = TempDir::new()?;
        let accounts: Vec<_> = accounts
            .iter()
            .map(|name| format!("{name}:{KEY}"))
            .collect();
        let accounts = accounts.join(";");
        let mut process = spawn(&accounts, storage, ports, directory.path())?;
        let (output, (blobs, queues)) = until_it_listens(&mut process)?;
        Ok(Self {
            queues,
            blobs,
            accounts,
            storage,
            process,
            output,
            directory,
        })
    }

    /// The port of the queue service on the loopback interface.
    #[must_use]
    pub fn queue_port(&self) -> u16 {
        self.queues
    }

    /// The port of the blob service on the loopback interface.
    #[must_use]
    pub fn blob_port(&self) -> u16 {
        self.blobs
    }

    /// Where the account's queues are.
    #[must_use]
    pub fn queue_endpoint(&self, account: &str) -> String {
        format!("http://127.0.0.1:{}/{account}", self.queues)
    }

    /// A connection string for queues and blobs, with the account's key.
    #[must_use]
    pub fn connection_string(&self, account: &str) -> String {
        let (queues, blobs) = (self.queue_endpoint(account), self.blobs);
        format!(
            "AccountName={account};AccountKey={KEY};QueueEndpoint={queues};\
             BlobEndpoint=http://127.0.0.1:{blobs}/{account}"
        )
    }

    /// The URL of the queue service, with a shared access signature that allows everything there.
    #[must_use]
    pub fn signed_url(&self, account: &str) -> String {
        format!("{}?{}", self.queue_endpoint(account), signature(account))
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(
    accounts: &str,
    storage: Storage,
    ports: [u16; 2],
    directory: &Path,
) -> Result<Child, Error> {
    let [blobs, queues] = ports.map(|port| port.to_string());
    let mut command = Command::new("node");
    command
        .args(["-e", UNTIL_INPUT_ENDS])
        .arg(program()?)
        .args(["--blobPort", &blobs, "--queuePort", &queues])
        .args(["--tablePort", "0", "--silent", "--disableTelemetry"]);
    if storage == Storage::Memory {
        command.args(["--inMemoryPersistence", "--extentMemoryLimit", "1024"]);
    }
    command
        .current_dir(directory)
        .env("AZURITE_ACCOUNTS", accounts)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Error::other(format!("node did not start: {error}")))
}

/// Its output from then on, and the ports of blobs and queues.
fn until_it_listens(process: &mut Child) -> Result<(BufReader<ChildStdout>, (u16, u16)), Error> {
    let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
    match listening(&mut output)? {
        Ok(ports) => Ok((output, ports)),
        Err(said) => {
            let ended = process.wait()?;
            let told = format!("Azurite ended before it listened ({ended}): {said}");
            Err(Error::other(told))
        }
    }
}

/// A port that is free, and that no connection is given while the server that had it is down: those
/// that systems give out begin at 32768 or higher.
fn lasting_port() -> Result<u16, Error> {
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

/// The ports of blobs and queues, or what was said instead.
fn listening(output: &mut impl BufRead) -> Result<Result<(u16, u16), String>, Error> {
    let (mut blobs, mut queues, mut said) = (None, None, String::new());
    for line in output.lines() {
        let line = line?;
        said.push_str(&line);
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

/// What `AZURITE` names, or what `cargo xtask` installed in the directory that this was built in.
fn program() -> Result<PathBuf, Error> {
    let found = match std::env::var_os("AZURITE") {
        Some(given) => Some(PathBuf::from(given)),
        None => {
            let this = std::env::current_exe()?;
            let installed = |folder: &Path| folder.join("azurite/node_modules/.bin/azurite");
            this.ancestors().map(installed).find(|path| path.exists())
        }
    };
    let found = found.ok_or_else(|| {
        Error::other("there is no Azurite: `cargo xtask test` installs it, or set AZURITE to one")
    })?;
    let told = |error| Error::other(format!("no Azurite at {}: {error}", found.display()));
    found.canonicalize().map_err(told)
}

/// The query of a signature for the whole account, as the service defines account signatures.
fn signature(account: &str) -> String {
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
    fn the_ports_are_read_from_what_azurite_says() {
        let said = "Azurite Blob service is starting at http://127.0.0.1:0\n\
                    Azurite Blob service is successfully listening at http://127.0.0.1:41001\n\
                    Azurite Queue service is successfully listening at http://127.0.0.1:41002\n";
        let ports = listening(&mut said.as_bytes()).expect("read");
        assert_eq!(ports, Ok((41001, 41002)));
    }

    #[test]
    fn what_it_said_before_it_ended_is_told() {
        let ended = listening(&mut "Exit due to invalid account\n".as_bytes()).expect("read");
        assert_eq!(ended, Err("Exit due to invalid account".to_owned()));
    }

    #[test]
    fn a_lasting_port_is_not_one_that_systems_give_out() {
        let ports = [(); 2].map(|()| lasting_port().expect("a free port"));
        assert!(ports.iter().all(|port| (20_000..30_000).contains(port)));
        assert_ne!(ports[0], ports[1]);
    }
}
