//! One Azurite for all tests of this process, started on a free port and gone with the process.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

/// The key that every test uses. Azurite takes any account that `AZURITE_ACCOUNTS` names.
pub(crate) const KEY: &str = "Y29uZm9ybWFuY2Uta2V5";

pub(crate) const ACCOUNT: &str = "conformance";

pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

pub(crate) struct Server {
    pub(crate) port: u16,
    _process: Child,
    _directory: TempDir,
}

/// Ends the server when its input does, which is when this process is gone, however it ended.
const UNTIL_INPUT_ENDS: &str = "process.stdin.on('end', () => process.exit(0)).resume(); \
                                require(process.argv[1]);";

impl Server {
    fn start() -> Self {
        let program = program();
        let directory = TempDir::new().expect("a directory");
        let mut process = Command::new("node")
            .args(["-e", UNTIL_INPUT_ENDS])
            .arg(&program)
            .args(["--queuePort", "0", "--inMemoryPersistence"])
            .args(["--silent", "--disableTelemetry"])
            .current_dir(directory.path())
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start node for {}: {error}", program.display()));
        match ready(&mut process) {
            Ok(port) => Self {
                port,
                _process: process,
                _directory: directory,
            },
            Err(said) => {
                let ended = process.wait();
                panic!("Azurite ended before it was ready ({ended:?}): {said}");
            }
        }
    }

    pub(crate) fn connection_string(&self) -> String {
        format!(
            "AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://127.0.0.1:{}/{ACCOUNT}",
            self.port
        )
    }
}

/// Waits until the server says on which port it listens.
fn ready(process: &mut Child) -> Result<u16, String> {
    let output = process.stdout.take().ok_or("its output is not piped")?;
    let mut said = String::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| error.to_string())?;
        if line.contains("successfully listens") {
            let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
            return port.ok_or(line);
        }
        said.push_str(&line);
    }
    Err(said)
}

fn program() -> PathBuf {
    let given = std::env::var_os("AZURITE").map(PathBuf::from);
    let installed = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .with_file_name("azurite")
        .join("node_modules/.bin/azurite-queue");
    let program = given.unwrap_or(installed);
    program.canonicalize().unwrap_or_else(|error| {
        panic!(
            "no Azurite at {} ({error}); `cargo xtask test` installs it, or set AZURITE to the \
             program `azurite-queue`",
            program.display()
        )
    })
}
