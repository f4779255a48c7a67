//! One Azurite for all tests of this process, with queues and blobs on free ports, gone with the
//! process.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(Server::start);

/// The key of every account. Azurite takes any account that `AZURITE_ACCOUNTS` names.
pub(crate) const KEY: &str = "bW9zYWljLWNhbmFyeS1rZXk=";

/// An account for each test, so that none sees another's messages.
const ACCOUNTS: [&str; 4] = ["quiet", "killed", "secretive", "lost"];

pub(crate) struct Server {
    pub(crate) blobs: u16,
    queues: u16,
    _process: Child,
    /// It still has things to say, and would end if nobody listened.
    _output: BufReader<ChildStdout>,
    _directory: TempDir,
}

/// Ends the server when its input does, which is when this process is gone, however it ended.
const UNTIL_INPUT_ENDS: &str = "process.stdin.on('end', () => process.exit(0)).resume(); \
                                require(process.argv[1]);";

impl Server {
    fn start() -> Self {
        let program = program();
        let directory = TempDir::new().expect("a directory");
        let accounts = ACCOUNTS.map(|account| format!("{account}:{KEY}"));
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
            .unwrap_or_else(|error| panic!("start node for {}: {error}", program.display()));
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        match ready(&mut output) {
            Ok((blobs, queues)) => Self {
                blobs,
                queues,
                _process: process,
                _output: output,
                _directory: directory,
            },
            Err(said) => {
                let ended = process.wait();
                panic!("Azurite ended before it was ready ({ended:?}): {said}");
            }
        }
    }

    pub(crate) fn connection_string(&self, account: &str) -> String {
        let Self { blobs, queues, .. } = self;
        format!(
            "AccountName={account};AccountKey={KEY};\
             QueueEndpoint=http://127.0.0.1:{queues}/{account};\
             BlobEndpoint=http://127.0.0.1:{blobs}/{account}"
        )
    }
}

/// Waits until the server says on which ports it listens.
fn ready(output: &mut BufReader<ChildStdout>) -> Result<(u16, u16), String> {
    let (mut blobs, mut queues, mut said) = (None, None, String::new());
    for line in output.lines() {
        let line = line.map_err(|error| error.to_string())?;
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
            return Ok((blobs, queues));
        }
    }
    Err(said)
}

/// The program `azurite`, which stands beside the `azurite-queue` that other suites run.
fn program() -> PathBuf {
    let given = std::env::var_os("AZURITE").map(PathBuf::from);
    let installed = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .with_file_name("azurite")
        .join("node_modules/.bin/azurite");
    let program = given.map_or(installed, |queue| queue.with_file_name("azurite"));
    program.canonicalize().unwrap_or_else(|error| {
        panic!(
            "no Azurite at {} ({error}); `cargo xtask test` installs it, or set AZURITE to a program \
             `azurite-queue` that has `azurite` beside it",
            program.display()
        )
    })
}
