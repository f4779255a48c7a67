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
}

/// Initialises and runs a server, restarts it at once for each line of its input, and stops it and removes the folder when
/// the input ends.
const SCRIPT: &str = r#"
set -e
# A signal to the group of the tests ends them, and so the input.
trap '' HUP INT TERM
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
encrypted=
if [ -n "$CERTIFICATE" ]; then
    (umask 077; printf %s "$CERTIFICATE" >"$folder/certificate"; printf %s "$KEY" >"$folder/key")
    encrypted="-c ssl=on -c ssl_cert_file=$folder/certificate -c ssl_key_file=$folder/key"
fi
control() { "$BIN/pg_ctl" -D "$folder/data" -w -l "$folder/log" -o "-p $PORT -k $folder -c listen_addresses=127.0.0.1 $encrypted" "$@" >/dev/null || { cat "$folder/log" >&2; exit 1; }; }
"$BIN/initdb" -D "$folder/data" -U postgres -A trust --no-sync >"$folder/initdb" 2>&1 || { cat "$folder/initdb" >&2; exit 1; }
control start
echo started
while read -r line; do
    control -m immediate restart
    echo restarted
done
exec >/dev/null 2>&1
control -m immediate stop
"#;

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
        Self::launch("", "")
    }

    /// Starts a server as [`start`](Self::start) does, which accepts encrypted connections too. Certificate and key are PEM.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_encrypted(certificate: &str, key: &str) -> Result<Self, Error> {
        Self::launch(certificate, key)
    }

    fn launch(certificate: &str, key: &str) -> Result<Self, Error> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // The server refuses to run as root.
        let is_root = Command::new("id").arg("-u").output()?.stdout == b"0\n";
        let mut command = if is_root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh"]);
            command
        } else {
            Command::new("sh")
        };
        let mut child = command
            .args(["-c", SCRIPT])
            .env("BIN", programs()?)
            .env("PORT", port.to_string())
            .env("CERTIFICATE", certificate)
            .env("KEY", key)
            // The user without rights has no other place.
            .current_dir("/tmp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut process = Process { child, output };
        process.expect("started")?;
        Ok(Self {
            url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            process: Some(process),
        })
    }

    /// Returns the URL of a database, without options.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Has the server stop without writing anything further, as in a crash, and start again.
    ///
    /// # Errors
    /// If it does not, or was not started by this process.
    pub fn crash(&mut self) -> Result<(), Error> {
        let process = self.process.as_mut();
        let process =
            process.ok_or_else(|| Error::other("a server that was given is not restarted"))?;
        let input = process.child.stdin.as_mut().expect("it is piped");
        writeln!(input, "crash")?;
        process.expect("restarted")
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
    fn expect(&mut self, word: &str) -> Result<(), Error> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.trim_end() == word {
            return Ok(());
        }
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            stderr.read_to_string(&mut said)?;
        }
        Err(Error::other(format!("PostgreSQL is not {word}: {said}")))
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
