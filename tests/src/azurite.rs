//! An Azurite of one's own.

use std::io::{BufRead, BufReader, Error};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::Sha256;
use tempfile::TempDir;

/// Azurite, with queues and blobs on free ports and kept in memory. It ends when this is dropped, and
/// when the process that holds it ends, however it ends.
#[derive(Debug)]
pub struct Azurite {
    queues: u16,
    blobs: u16,
    process: Child,
    /// It still has things to say, and would end if nobody listened.
    _output: BufReader<ChildStdout>,
    _directory: TempDir,
}

/// The key of every account.
pub const KEY: &str = "cXVldWUtdGVzdHMtY2FuYXJ5LWtleQ==";

/// Ends the server when its input does.
const UNTIL_INPUT_ENDS: &str = "process.stdin.on('end', () => process.exit(0)).resume(); \
                                require(process.argv[1]);";

impl Azurite {
    /// Starts one that has these accounts, as soon as it listens.
    ///
    /// # Errors
    /// Says what is missing, or what the program said before it ended.
    pub fn start(accounts: &[&str]) -> Result<Self, Error> {
        let program = program()?;
        let directory = TempDir::new()?;
        let accounts: Vec<_> = accounts
            .iter()
            .map(|name| format!("{name}:{KEY}"))
            .collect();
        let mut process = Command::new("node")
            .args(["-e", UNTIL_INPUT_ENDS])
            .arg(&program)
            .args(["--blobPort", "0", "--queuePort", "0", "--tablePort", "0"])
            .args(["--inMemoryPersistence", "--extentMemoryLimit", "1024"])
            .args(["--silent", "--disableTelemetry"])
            .current_dir(directory.path())
            .env("AZURITE_ACCOUNTS", accounts.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::other(format!("node did not start: {error}")))?;
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        match listening(&mut output)? {
            Ok((blobs, queues)) => Ok(Self {
                queues,
                blobs,
                process,
                _output: output,
                _directory: directory,
            }),
            Err(said) => {
                let ended = process.wait()?;
                let told = format!("Azurite ended before it listened ({ended}): {said}");
                Err(Error::other(told))
            }
        }
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
}
