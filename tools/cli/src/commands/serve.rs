use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use metrics_exporter_prometheus::PrometheusBuilder;
use queue_runtime::backend::{Backend, MemoryBackend, SqliteBuilder};
use queue_runtime::clock::{Clock, SystemClock};
use queue_runtime::service::StopSignals;
use queue_server::{Account, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Server};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};
use crate::output::note;
use crate::storage;

/// What stands in the URL for the name of an account.
const PLACEHOLDER: &str = "{account}";

/// The longest text of a message of the service, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Serve the queues to programs in any language, by the protocol of Azure Queue Storage, until a signal to stop.
///
/// queues serve --url sqlite:queues.db
///
/// Without accounts, there is the one that emulators have, and clients reach it as `UseDevelopmentStorage=true`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The address to listen on.
    #[arg(
        long = "queueHost",
        visible_alias = "host",
        value_name = "ADDRESS",
        default_value = "127.0.0.1"
    )]
    host: IpAddr,

    /// The port to listen on; with 0, the system chooses one, and the command says which.
    #[arg(
        long = "queuePort",
        visible_alias = "port",
        value_name = "PORT",
        default_value_t = 10001
    )]
    port: u16,

    /// A file with a line `NAME=KEY` for each account; a line more of the same name is a second key. With `{account}` in the
    /// URL, as in `sqlite:{account}.db`, each account has queues of its own, and otherwise all have the same.
    #[arg(long, value_name = "FILE")]
    accounts: Option<PathBuf>,

    /// End also when the standard input does, as that of a program which has started the server.
    #[arg(long)]
    until_input_ends: bool,

    /// A file with the chain of certificates for TLS, in PEM, the server's own first. It is read once, at the start.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// A file with the private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Serve metrics for Prometheus at this address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,

    /// Answer 503 to requests on a queue beyond so many within any second, as Azure does from about 2,000 on.
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<NonZeroUsize>,

    /// Log each request to standard error: who asked for what, the answer, how long it took. Signatures and receipts are left
    /// out. `RUST_LOG`, if set, decides instead.
    #[arg(long)]
    access_log: bool,

    /// Listen without TLS on an address that other machines reach.
    #[arg(long)]
    allow_plain: bool,

    /// Serve the account whose key everybody knows on an address that other machines reach.
    #[arg(long)]
    allow_known_key: bool,
}

/// The upper bounds of the buckets of durations, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];

impl Serve {
    pub(crate) fn logs_requests(&self) -> bool {
        self.access_log
    }

    pub(crate) async fn run(&self, general: &General) -> Result<()> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        self.serve_metrics()?;
        let accounts = self.accounts(general, &clock).await?;
        let address = SocketAddr::new(self.host, self.port);
        let server = self.encrypted(Server::new(accounts))?;
        if !self.host.is_loopback() && self.cert.is_none() && !self.allow_plain {
            return Err(Failure::usage(format!(
                "{address} is reached by other machines, and there is no certificate for TLS"
            ))
            .with_help(
                "give --cert and --key, or --allow-plain in a network that you trust or behind a proxy with TLS",
            ));
        }
        let failed = |error| {
            Failure::new(
                Exit::Failed,
                format!("failed to listen on {address}: {error}"),
            )
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut signals = StopSignals::new().map_err(failed)?;
        let scheme = self.cert.as_ref().map_or("http", |_| "https");
        println!("serving queues at {scheme}://{address}");
        let stop = async {
            tokio::select! {
                signal = signals.next() => note(format!("stopping by {signal}")),
                () = input_ends(self.until_input_ends) => {}
            }
        };
        server.serve(listener, stop).await.map_err(failed)
    }

    fn serve_metrics(&self) -> Result<()> {
        let Some(address) = self.metrics else {
            return Ok(());
        };
        let exporter = PrometheusBuilder::new().with_http_listener(address);
        let exporter = exporter.set_buckets(&BUCKETS);
        let installed = exporter.and_then(PrometheusBuilder::install);
        installed.map_err(|error| {
            let text = format!("failed to serve metrics at {address}: {error}");
            Failure::new(Exit::Failed, text)
        })
    }

    fn encrypted(&self, server: Server) -> Result<Server> {
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(server);
        };
        let server = server.with_tls(&read(cert)?, &read(key)?);
        server.map_err(|problem| {
            let (cert, key) = (cert.display(), key.display());
            Failure::usage(format!("`{cert}` and `{key}`: {problem}"))
        })
    }

    async fn accounts(&self, general: &General, clock: &Arc<dyn Clock>) -> Result<Vec<Account>> {
        let lines = match &self.accounts {
            None => format!("{DEVELOPMENT_ACCOUNT}={DEVELOPMENT_KEY}"),
            Some(file) => String::from_utf8(read(file)?)
                .map_err(|_| Failure::usage(format!("`{}` is no UTF-8", file.display())))?,
        };
        let url = storage::url(general)?;
        let shared = if url.contains(PLACEHOLDER) {
            None
        } else {
            Some(open(url, clock).await?)
        };
        let mut accounts: Vec<(String, Account)> = Vec::new();
        for (line, number) in lines.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let refused = |problem: String| {
                Failure::usage(format!("line {number} of the accounts: {problem}"))
            };
            let (name, key) = line
                .split_once('=')
                .ok_or_else(|| refused("it is not NAME=KEY".to_owned()))?;
            if key == DEVELOPMENT_KEY && !self.host.is_loopback() && !self.allow_known_key {
                return Err(Failure::usage(format!(
                    "everybody knows the key of `{name}`, and other machines reach {}",
                    self.host
                ))
                .with_help("give accounts with keys of your own by --accounts"));
            }
            match accounts.iter_mut().find(|(other, _)| other == name) {
                Some((_, account)) => *account = account.clone().with_key(key).map_err(refused)?,
                None => {
                    let queues = match &shared {
                        Some(shared) => Arc::clone(shared),
                        None => open(&url.replace(PLACEHOLDER, name), clock).await?,
                    };
                    let account = Account::new(name, key, queues, Arc::clone(clock));
                    let mut account = account.map_err(refused)?;
                    if let Some(limit) = self.limit {
                        account = account.with_limit(limit);
                    }
                    accounts.push((name.to_owned(), account));
                }
            }
        }
        if accounts.is_empty() {
            return Err(Failure::usage("the file of accounts names none"));
        }
        Ok(accounts.into_iter().map(|(_, account)| account).collect())
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        let text = format!("failed to read `{}`: {error}", file.display());
        Failure::new(Exit::Failed, text)
    })
}

/// Waits until the standard input ends, if it is heeded.
async fn input_ends(is_heeded: bool) {
    let (ended, ends) = oneshot::channel();
    if is_heeded {
        // It cannot be read without a thread that blocks.
        std::thread::spawn(move || {
            let read = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            // The receiver is gone if a signal came first.
            let _ = ended.send(read);
        });
        drop(ends.await);
    } else {
        std::future::pending().await
    }
}

/// Opens the storage for messages as long as those of the service.
async fn open(url: &str, clock: &Arc<dyn Clock>) -> Result<Arc<dyn Backend>> {
    let scheme = url.split(':').next().unwrap_or_default();
    if scheme.eq_ignore_ascii_case("sqlite") {
        let file = SqliteBuilder::from_url(url, Arc::clone(clock));
        let file = file.map_err(|error| Failure::usage(format!("{error:?}")))?;
        return Ok(Arc::new(file.max_body(MAX_BODY).open().await?));
    }
    if scheme.eq_ignore_ascii_case("memory") {
        note("`memory:` is lost when the server ends");
        let memory = MemoryBackend::new(Arc::clone(clock));
        return Ok(Arc::new(memory.with_max_body(MAX_BODY)));
    }
    #[cfg(feature = "postgres")]
    if ["postgres", "postgresql"].contains(&&*scheme.to_ascii_lowercase()) {
        let database = queue_runtime::postgres::PostgresBuilder::from_url(url, Arc::clone(clock));
        let database = database.map_err(|error| Failure::usage(format!("{error:?}")))?;
        return Ok(Arc::new(database.max_body(MAX_BODY).open().await?));
    }
    let text = format!(
        "`serve` is for `sqlite:PATH`, `postgres://…` and `memory:`, and the URL begins with `{scheme}:`"
    );
    Err(Failure::new(Exit::Unsupported, text))
}
