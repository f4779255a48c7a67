//! Starting a PostgreSQL server.

use std::io::{BufRead as _, BufReader, Error, Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// The variable with the URL of a running server, in place of one that is started.
const VARIABLE: &str = "QUEUE_TEST_POSTGRES";

/// A running PostgreSQL server.
#[derive(Debug)]
pub struct PostgresServer {
    url: String,
    process: Option<Process>,
}

/// What runs the server until its input ends, at the latest with this process.
#[derive(Debug)]
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    port: u16,
}

/// How a server is started.
#[derive(Debug, Default)]
#[must_use]
pub struct PostgresBuilder {
    environment: Vec<(&'static str, String)>,
    is_on_a_disk: bool,
}

/// Where the write-ahead log is of a server whose data is on a small disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAheadLog {
    /// With the data.
    OnTheDisk,
    /// On another disk, with enough room.
    Elsewhere,
}

/// Initialises and runs a server, carries out each line of its input, and stops the server and removes the folder when
/// the input ends.
const SCRIPT: &str = include_str!("postgres.sh");

/// The script's variables that a builder may set.
const SETTINGS: [&str; 7] = [
    "CERTIFICATE",
    "KEY",
    "OPTIONS",
    "PRIMARY",
    "CLOCK",
    "DISK",
    "WAL",
];

/// Where the small disk is mounted, in a namespace of the server's own.
const DISK_AT: &str = "/mnt";

/// Mounts a small disk, and runs a command as a user who is not root there, as which the server refuses to run.
const ON_A_DISK: [&str; 6] = [
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    r#"mount -t tmpfs -o "size=$DISK,mode=1777" tmpfs "$DISK_AT" && exec unshare --user --map-user=65534 --map-group=65534 "$0" "$@""#,
];

impl PostgresBuilder {
    /// Accepts encrypted connections too. Certificate and key are PEM.
    pub fn encrypted(self, certificate: &str, key: &str) -> Self {
        self.with("CERTIFICATE", certificate).with("KEY", key)
    }

    /// Accepts 500 connections in place of 100.
    pub fn for_many_connections(self) -> Self {
        self.with("OPTIONS", "-c max_connections=500")
    }

    /// Acknowledges a commit once a standby has it.
    pub fn waits_for_a_standby(self) -> Self {
        self.with("OPTIONS", "-c synchronous_standby_names=*")
    }

    /// Is a standby of a running server, with a copy of its data.
    ///
    /// # Panics
    /// If the server was not started by this process.
    pub fn standby_of(self, primary: &PostgresServer) -> Self {
        let process = primary.process.as_ref();
        let port = process.expect("the primary was started here").port;
        self.with("PRIMARY", &port.to_string())
    }

    /// Runs on a clock that [`PostgresServer::set_clock`] sets. Requires Debian's package `libfaketime`.
    pub fn with_its_own_clock(self) -> Self {
        self.with("CLOCK", "yes")
    }

    /// Has its data on a disk of that size, which only the server sees. Requires Linux, and a user who may create a
    /// namespace.
    pub fn on_a_disk(mut self, mebibytes: u32, log: WriteAheadLog) -> Self {
        self.is_on_a_disk = true;
        let with_disk = self.with("DISK", &format!("{mebibytes}m"));
        match log {
            WriteAheadLog::OnTheDisk => with_disk,
            WriteAheadLog::Elsewhere => with_disk.with("WAL", "elsewhere"),
        }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// If PostgreSQL is not installed, or does not start; then with its output.
    pub fn start(self) -> Result<PostgresServer, Error> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = if self.is_on_a_disk {
            let mut command = Command::new("unshare");
            command.args(ON_A_DISK).arg("sh").current_dir("/tmp");
            command
        } else {
            unprivileged()?
        };
        let mut child = command
            .args(["-c", SCRIPT])
            .env("BIN", programs()?)
            .env("PORT", port.to_string())
            .env("DISK_AT", DISK_AT)
            .envs(SETTINGS.map(|setting| (setting, "")))
            .envs(self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut process = Process {
            child,
            output,
            port,
        };
        process.done("start")?;
        Ok(PostgresServer {
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            process: Some(process),
        })
    }
}

impl PostgresServer {
    /// The path of the log of a server that was started, as SQL.
    pub const LOG: &str = "current_setting('data_directory') || '/../log'";

    /// Returns the server whose URL is in `QUEUE_TEST_POSTGRES`, or starts one.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn given_or_started() -> Result<Self, Error> {
        match std::env::var(VARIABLE) {
            Ok(url) => Ok(Self { url, process: None }),
            Err(_) => Self::start(),
        }
    }

    /// Starts a server that no other test uses, on a free port of the loopback interface and with data of its own, until it
    /// is dropped or this process ends.
    ///
    /// # Errors
    /// If PostgreSQL is not installed, or does not start; then with its output.
    pub fn start() -> Result<Self, Error> {
        Self::builder().start()
    }

    /// Returns how a server is started as [`start`](Self::start) does.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// Returns the URL of a database, without options.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the port on the loopback interface.
    ///
    /// # Panics
    /// If the server was not started by this process.
    #[must_use]
    pub fn port(&self) -> u16 {
        let process = self.process.as_ref();
        process.expect("it was started here").port
    }

    /// Has the server stop without writing anything further, as in a crash, and start again. Starts a server that has
    /// stopped.
    ///
    /// # Errors
    /// If it does not, or was not started by this process.
    pub fn crash(&mut self) -> Result<(), Error> {
        self.run("control -m immediate restart")
    }

    /// Has the server stop without writing anything further.
    ///
    /// # Errors
    /// If it does not, or was not started by this process.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.run("control -m immediate stop")
    }

    /// Makes a standby a primary.
    ///
    /// # Errors
    /// If it does not become one, or was not started by this process.
    pub fn promote(&mut self) -> Result<(), Error> {
        self.run("control promote")
    }

    /// Sets the server's own clock to so many seconds after the system's.
    ///
    /// # Errors
    /// If it cannot be set.
    pub fn set_clock(&mut self, seconds: i64) -> Result<(), Error> {
        self.run(&format!("set_clock {seconds}"))
    }

    /// Takes all but so many kibibytes of the server's disk.
    ///
    /// # Errors
    /// If they cannot be taken.
    pub fn take_disk(&mut self, all_but: u32) -> Result<(), Error> {
        let free = "$(df --output=avail -k \"$DISK_AT\" | tail -n 1)";
        self.run(&format!(
            "fallocate -l $(({free} - {all_but}))KiB \"$DISK_AT/others\""
        ))
    }

    /// Gives back what [`take_disk`](Self::take_disk) has taken.
    ///
    /// # Errors
    /// If it cannot be given back.
    pub fn free_disk(&mut self) -> Result<(), Error> {
        self.run("rm \"$DISK_AT/others\"")
    }

    /// Carries out a line of the script.
    fn run(&mut self, line: &str) -> Result<(), Error> {
        let process = self.process.as_mut();
        let process =
            process.ok_or_else(|| Error::other("a server that was given is left as it is"))?;
        let input = process.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{line}")?;
        process.done(line)
    }
}

impl PostgresServer {
    /// Ends a connection of a client, whatever it does.
    pub fn end_a_connection(&self) {
        const END: &str = "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity \
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one";

        // It may end nobody's, or fail while the server restarts.
        if let Err(error) = self.psql(END) {
            eprintln!("no connection was ended: {error}");
        }
    }

    /// Executes SQL, by `psql`.
    ///
    /// # Panics
    /// If it fails.
    pub fn execute(&self, sql: &str) {
        let output = self.psql(sql).expect("psql runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    fn psql(&self, sql: &str) -> Result<Output, Error> {
        let mut command = Command::new(programs()?.join("psql"));
        command.args(["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1"]);
        command.args(["--command", sql, &self.url]).output()
    }
}

impl Process {
    fn done(&mut self, what: &str) -> Result<(), Error> {
        let mut said = String::new();
        self.output.read_line(&mut said)?;
        if said.trim_end() == "done" {
            return Ok(());
        }
        if said.is_empty() {
            // The script has ended.
            let stderr = self.child.stderr.as_mut().expect("it is piped");
            stderr.read_to_string(&mut said)?;
        }
        Err(Error::other(format!(
            "PostgreSQL failed to `{what}`: {said}"
        )))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            eprintln!("PostgreSQL may still run: {error}");
        }
    }
}

/// A shell of a user without rights, if this one is root: servers refuse to run as root.
pub(crate) fn unprivileged() -> Result<Command, Error> {
    let is_root = Command::new("id").arg("-u").output()?.stdout == b"0\n";
    let mut command = if is_root {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
        command
    } else {
        Command::new("sh")
    };
    // That user has no other place.
    command.current_dir("/tmp");
    Ok(command)
}

/// Returns the folder of the newest release's programs.
fn programs() -> Result<PathBuf, Error> {
    const RELEASES: &str = "/usr/lib/postgresql";

    let release = |folder: &PathBuf| {
        let name = folder.file_name()?.to_str()?;
        name.parse::<u32>().ok()
    };
    let releases = std::fs::read_dir(RELEASES).into_iter().flatten().flatten();
    let newest = releases.map(|entry| entry.path()).max_by_key(release);
    newest.map(|newest| newest.join("bin")).ok_or_else(|| {
        Error::other(format!(
            "there is no PostgreSQL in {RELEASES}; install it, or set {VARIABLE} to a server's URL"
        ))
    })
}
