//! What a URL says: the server, the database, the schema, and the limits.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use queue_core::backend::{
    Attachments, Browsing, Capabilities, ConditionalPuts, Groups, Places, Tracking, parse_max_delay,
};
use queue_core::{Error, ErrorKind, Operation, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::settings::Pooling;

/// The schema of the queues, unless the URL names another.
const DEFAULT_SCHEMA: &str = "queues";

/// The largest body of a message that is moved, in bytes. The server's limit is 1 GB for a row, and it needs a multiple
/// of the row in memory.
const MAX_MOVED_BODY: usize = 128 * 1024 * 1024;

/// How long a connection may take to be made, and how long a server may be silent before it is taken for dead, unless
/// the URL says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(20);

/// Where the queues are, and their limits.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) config: Config,
    pub(crate) pooling: Pooling,
    /// Where the connection for wake-ups goes, if not to the same address.
    pub(crate) listen: Option<Config>,
    pub(crate) schema: String,
    pub(crate) capabilities: Capabilities,
    /// The start of the URIs of queues, without user information.
    pub(crate) uri: String,
    /// What encrypts connections, if they are.
    pub(crate) encryption: Option<Encryption>,
}

/// What encrypts connections.
#[derive(Clone)]
pub(crate) struct Encryption(
    #[cfg(feature = "tls")] pub(crate) tokio_postgres_rustls::MakeRustlsConnect,
);

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encryption")
    }
}

impl Options {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, address) = address.split_once("://").unwrap_or_default();
        if !["postgres", "postgresql"].contains(&&*scheme.to_ascii_lowercase()) {
            return Err(refused(
                "the URL does not start with `postgres://`, as `postgres://USER@HOST/DATABASE` does",
            ));
        }
        let mut capabilities = capabilities();
        let mut schema = DEFAULT_SCHEMA.to_owned();
        let mut authorities = None;
        let mut of_driver = Vec::new();
        let (mut pooling, mut listen) = (Pooling::Session, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            match name {
                "schema" => schema = checked_schema(&value)?,
                "sslrootcert" => authorities = Some(PathBuf::from(&*value)),
                // Each encrypted connection is verified so.
                "sslmode" if value == "verify-full" => of_driver.push("sslmode=require"),
                "pooler" => pooling = checked_pooler(&value)?,
                "listen" => listen = Some(checked_hosts(&value)?),
                "max_delay" => capabilities.max_delay = parse_max_delay(&value)?,
                _ => of_driver.push(option),
            }
        }
        let config = configured(address, &of_driver)?;
        let encryption = match config.get_ssl_mode() {
            SslMode::Require => Some(encryption(authorities.as_deref())?),
            _ if authorities.is_some() => {
                return Err(refused(
                    "the option `sslrootcert` needs `sslmode=verify-full`, without which connections are not encrypted",
                ));
            }
            _ => None,
        };
        let listen = listen.map(|hosts| {
            of_driver.retain(|option| !["host", "hostaddr", "port"].contains(&name_of(option)));
            configured(&with_hosts(address, &hosts), &of_driver)
        });
        let listen = listen.transpose()?;
        let uri = uri(&config, &schema);
        Ok(Self {
            config,
            pooling,
            listen,
            schema,
            capabilities,
            uri,
            encryption,
        })
    }
}

/// Reads what the driver knows, and sets what the URL leaves open.
fn configured(address: &str, options: &[&str]) -> Result<Config> {
    let address = match options {
        [] => format!("postgres://{address}"),
        options => format!("postgres://{address}?{}", options.join("&")),
    };
    // The driver's error names the option, but quotes no value.
    let parsed = address.parse::<Config>();
    let mut config = parsed.map_err(|error| {
        refused(
            "the driver cannot read the URL; besides its options, `schema`, `max_delay`, `sslrootcert`, `pooler` and \
             `listen` are allowed",
        )
        .with_source(error)
    })?;
    let has = |option| options.iter().any(|given| name_of(given) == option);
    if config.get_ssl_mode() != SslMode::Require {
        // Not tried: a certificate that nobody can verify, such as Debian's, would be an error.
        config.ssl_mode(SslMode::Disable);
    }
    // After a failover, another host is the primary.
    if config.get_hosts().len() > 1 && !has("target_session_attrs") {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(SILENCE / 4);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(4);
    }
    // The driver's default of two hours is as good as none.
    if !has("keepalives_idle") {
        config.keepalives_idle(SILENCE);
    }
    if config.get_application_name().is_none() {
        config.application_name("queues");
    }
    Ok(config)
}

fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Replaces the hosts of an address, `USER@HOSTS/DATABASE`.
fn with_hosts(address: &str, hosts: &str) -> String {
    let (authority, path) = match address.find('/') {
        Some(at) => address.split_at(at),
        None => (address, ""),
    };
    match authority.rsplit_once('@') {
        Some((user, _)) => format!("{user}@{hosts}{path}"),
        None => format!("{hosts}{path}"),
    }
}

#[cfg(feature = "tls")]
fn encryption(authorities: Option<&Path>) -> Result<Encryption> {
    crate::tls::connector(authorities).map(Encryption)
}

#[cfg(not(feature = "tls"))]
fn encryption(_: Option<&Path>) -> Result<Encryption> {
    let error = Error::new(ErrorKind::Unsupported, Operation::Open);
    Err(error.unsent().with_detail(
        "encrypted connections need the feature `tls` of `storage-queues-postgres`, which is `postgres-tls` of `storage-queues`",
    ))
}

fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::local();
    capabilities.max_moved_body = MAX_MOVED_BODY;
    capabilities.attachments = Attachments::Supported;
    capabilities.groups = Groups::Supported;
    capabilities.tracking = Tracking::Supported;
    capabilities.places = Places::Kept;
    capabilities.browsing = Browsing::Supported;
    capabilities.conditional_puts = ConditionalPuts::Supported;
    // Processes wake each other, so polling is for those that cannot.
    capabilities.idle_cap = Duration::from_secs(1);
    capabilities
}

/// Checks the name of a schema, which needs no quotes then.
fn checked_schema(name: &str) -> Result<String> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts_well && name.len() <= 63 && !name.starts_with("pg_") && name.chars().all(is_word) {
        return Ok(name.to_owned());
    }
    Err(refused(format!(
        "the option `schema` is {name:?}; allowed are up to 63 lower-case letters, digits and underscores, starting \
         with a letter and not with `pg_`"
    )))
}

fn checked_pooler(mode: &str) -> Result<Pooling> {
    match mode {
        "session" => Ok(Pooling::Session),
        "transaction" => Ok(Pooling::Transaction),
        _ => Err(refused(format!(
            "the option `pooler` is {mode:?}; allowed are `session` and `transaction`, the modes of PgBouncer"
        ))),
    }
}

/// Checks hosts with their ports, as they stand in a URL.
fn checked_hosts(hosts: &str) -> Result<String> {
    let is_of_hosts = |c: char| c.is_ascii_alphanumeric() || "-._:,[]".contains(c);
    if hosts.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && hosts.chars().all(is_of_hosts)
    {
        return Ok(hosts.to_owned());
    }
    Err(refused(format!(
        "the option `listen` is {hosts:?}; allowed is `HOST:PORT`, or several with commas between them"
    )))
}

fn uri(config: &Config, schema: &str) -> String {
    let ports = config.get_ports();
    let address = |(at, host): (usize, &Host)| {
        let port = ports.get(at).or(ports.first()).unwrap_or(&5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(_) => format!("localhost:{port}"),
        }
    };
    let hosts = config.get_hosts().iter().enumerate().map(address);
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let database = config.get_dbname().or(config.get_user()).unwrap_or("");
    format!("postgres://{hosts}/{database}/{schema}")
}

pub(crate) fn refused(detail: impl Into<String>) -> Error {
    let error = Error::new(ErrorKind::InvalidInput, Operation::Open);
    error.with_detail(detail).unsent()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_server_database_and_schema() {
        let options = Options::parse(
            "postgres://me:secret@db.example:5433/shop?schema=orders&max_delay=30d&connect_timeout=3",
        );
        let options = options.expect("a URL");
        assert_eq!(options.uri, "postgres://db.example:5433/shop/orders");
        assert_eq!(
            options.config.get_connect_timeout(),
            Some(&Duration::from_secs(3))
        );
        assert_eq!(
            options.capabilities.max_delay,
            Duration::from_secs(30 * 86_400)
        );
        let options = Options::parse("PostgreSQL://me@one,two/shop").expect("a URL");
        assert_eq!(options.schema, "queues");
        assert_eq!(options.uri, "postgres://one:5432,two:5432/shop/queues");
    }

    #[test]
    fn the_connection_for_wake_ups_may_have_another_address() {
        let options = Options::parse(
            "postgres://me:secret@b:6432/shop?pooler=transaction&listen=db.example:5433&connect_timeout=3",
        );
        let options = options.expect("a URL");
        assert_eq!(options.pooling, Pooling::Transaction);
        assert_eq!(options.uri, "postgres://b:6432/shop/queues");
        let listen = options.listen.expect("an address");
        assert_eq!(listen.get_hosts(), [Host::Tcp("db.example".to_owned())]);
        assert_eq!(listen.get_ports(), [5433]);
        assert_eq!(listen.get_user(), options.config.get_user());
        assert_eq!(listen.get_password(), options.config.get_password());
        assert_eq!(listen.get_dbname(), options.config.get_dbname());
        assert_eq!(
            listen.get_connect_timeout(),
            options.config.get_connect_timeout()
        );
        let nobody = Options::parse("postgres://b/shop?listen=[::1]:1,two").expect("a URL");
        assert_eq!(nobody.listen.expect("an address").get_hosts().len(), 2);
    }

    #[test]
    fn a_refused_url_is_told_without_its_password() {
        for url in [
            "mysql://me:secret@host/db",
            "postgres://me:secret@host/db?schema=Big",
            "postgres://me:secret@host/db?schema=pg_queues",
            "postgres://me:secret@host/db?schema=a%22b",
            "postgres://me:secret@host/db?max_delay=1s",
            "postgres://me:secret@host/db?no_option=1",
            "postgres://me:secret@host/db?pooler=statement",
            "postgres://me:secret@host/db?listen=",
            "postgres://me:secret@host/db?listen=a/b",
            "postgres://me:secret@host/db?sslrootcert=authorities.pem",
            "postgres://me:secret@host/db?sslmode=verify-full&sslrootcert=/no/such/file",
        ] {
            let error = Options::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
    }
}
