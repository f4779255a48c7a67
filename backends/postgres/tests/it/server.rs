//! The server of the tests, and a schema for each of them.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use queue_core::clock::BoxFuture;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(4).enable_all().build();
    built.expect("threads start")
});

static SERVER: LazyLock<Server> = LazyLock::new(|| match std::env::var("QUEUE_TEST_POSTGRES") {
    Ok(url) => Server { url, child: None },
    Err(_) => Server::start(),
});

pub(crate) struct Server {
    url: String,
    /// What runs the server until its standard input ends, at the latest with this process.
    child: Option<Child>,
}

/// Initialises and runs a server until its input ends, then stops the server and removes the folder.
const SCRIPT: &str = "
set -e
folder=$(mktemp -d)
trap 'rm -rf \"$folder\"' EXIT
\"$BIN/initdb\" -D \"$folder/data\" -U postgres -A trust --no-sync >\"$folder/initdb\" 2>&1 || { cat \"$folder/initdb\" >&2; exit 1; }
\"$BIN/pg_ctl\" -D \"$folder/data\" -w -l \"$folder/log\" \
    -o \"-p $PORT -k $folder -c listen_addresses=127.0.0.1\" start >/dev/null || { cat \"$folder/log\" >&2; exit 1; }
echo started
exec >/dev/null 2>&1
cat
\"$BIN/pg_ctl\" -D \"$folder/data\" -m immediate stop >/dev/null
";

impl Server {
    /// Starts a server that no other test uses, until it is dropped or this process ends.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a port").port();
        drop(listener);
        // The server refuses to run as root.
        let is_root = Command::new("id").arg("-u").output().expect("id").stdout == b"0\n";
        let mut command = if is_root {
            let mut command = Command::new("setpriv");
            command.args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "sh",
                "-c",
                SCRIPT,
            ]);
            command
        } else {
            let mut command = Command::new("sh");
            command.args(["-c", SCRIPT]);
            command
        };
        let command = command.env("BIN", binaries()).env("PORT", port.to_string());
        let command = command
            .current_dir("/tmp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh runs");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        let read = BufReader::new(output).read_line(&mut line);
        read.expect("its output");
        assert_eq!(line, "started\n", "PostgreSQL did not start");
        Self {
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            child: Some(child),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.stdin.take());
            if let Err(error) = child.wait() {
                eprintln!("PostgreSQL may still run: {error}");
            }
        }
    }
}

/// The folder of the newest release's programs.
fn binaries() -> PathBuf {
    let releases = std::fs::read_dir("/usr/lib/postgresql");
    let releases = releases.expect("set QUEUE_TEST_POSTGRES to a URL, or install PostgreSQL");
    let folders = releases.flatten().map(|release| release.path().join("bin"));
    let release = |folder: &PathBuf| {
        let name = folder.parent()?.file_name()?.to_str()?;
        name.parse::<u32>().ok()
    };
    folders
        .max_by_key(release)
        .expect("a release of PostgreSQL")
}

/// A schema of one test, which is removed when dropped.
pub(crate) struct Schema {
    name: String,
    url: String,
}

impl Schema {
    pub(crate) fn new() -> Self {
        Self::on(&SERVER)
    }

    pub(crate) fn on(server: &Server) -> Self {
        let name = format!("test_{}", uuid::Uuid::now_v7().simple());
        let url = server.url.clone();
        Self { name, url }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn url(&self) -> String {
        format!("{}?schema={}", self.url, self.name)
    }

    /// Executes commands on a connection of their own, whose tables are those of the schema.
    pub(crate) async fn execute(&self, sql: &str) {
        let client = self.connect().await;
        client.batch_execute(sql).await.expect("executed");
    }

    pub(crate) async fn connect(&self) -> Client {
        let connected = tokio_postgres::connect(&self.url, NoTls).await;
        let (client, connection) = connected.expect("connected");
        tokio::spawn(connection);
        let set = format!("SET search_path = {}", self.name);
        client.batch_execute(&set).await.expect("set");
        client
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        // A thread of its own, because the test may be on one of the runtime's.
        std::thread::scope(|scope| {
            let removed = scope.spawn(|| {
                let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
                block_on(self.execute(&drop));
            });
            if removed.join().is_err() {
                eprintln!("the schema {} was not removed", self.name);
            }
        });
    }
}

pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.block_on(test)
}

pub(crate) fn spawn(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    let running = RUNTIME.spawn(task);
    Box::pin(async {
        if let Err(failure) = running.await {
            std::panic::resume_unwind(failure.into_panic());
        }
    })
}
