//! Starting PgBouncer, a pooler of PostgreSQL's connections, in transaction mode.

use std::io::Error;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::postgres::unprivileged;

/// A running PgBouncer, which has few connections to the server.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    url: String,
}

/// Runs the pooler until the input ends, at the latest with this process, and removes its folder.
const SCRIPT: &str = r#"
set -e
# A signal to the group of the tests ends them, and so the input.
trap '' HUP INT TERM
folder=$(mktemp -d)
trap 'kill -KILL $pooler 2>/dev/null || cat "$folder/log" >&2; rm -rf "$folder"' EXIT
printf '%s' "$SETTINGS" >"$folder/pgbouncer.ini"
pgbouncer "$folder/pgbouncer.ini" >"$folder/log" 2>&1 &
pooler=$!
sleep 0.2
kill -0 $pooler
read -r line || true
"#;

/// Only a pooler that does not start takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

impl PgBouncer {
    /// Starts a pooler on a free port of the loopback interface, until it is dropped or this process ends, for a database
    /// `postgres://USER@HOST:PORT/DATABASE`.
    ///
    /// # Errors
    /// If PgBouncer is not installed, or does not start.
    pub fn start(url: &str) -> Result<Self, Error> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (user, server, database) = parts(url)
            .ok_or_else(|| Error::other("the URL is not `postgres://USER@HOST:PORT/DATABASE`"))?;
        let credentials = match user.split_once(':') {
            Some((name, password)) => format!("user={name} password='{password}'"),
            None => format!("user={user}"),
        };
        let (server_host, server_port) = server.split_once(':').unwrap_or((server, "5432"));
        let settings = format!(
            "[databases]\n\
             {database} = host={server_host} port={server_port} dbname={database} {credentials}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 1000\n"
        );
        let child = unprivileged()?
            .args(["-c", SCRIPT])
            .env("SETTINGS", settings)
            .stdin(Stdio::piped())
            .spawn()?;
        let mut pooler = Self {
            child,
            url: format!("postgres://{user}@127.0.0.1:{port}/{database}"),
        };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if pooler.child.try_wait()?.is_some() || started.elapsed() > PATIENCE {
                return Err(Error::other(
                    "PgBouncer does not start; is Debian's package `pgbouncer` installed?",
                ));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(pooler)
    }

    /// Returns the URL of the database through the pooler, without options.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (user, address) = url.split_once("://")?.1.rsplit_once('@')?;
    let (server, database) = address.split_once('/')?;
    Some((user, server, database))
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            eprintln!("PgBouncer may still run: {error}");
        }
    }
}
