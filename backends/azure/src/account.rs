//! Parsing of connection strings and URLs into an account's endpoint and credential.
//!
//! A connection string is `NAME=VALUE;NAME=VALUE`. Errors name a setting by its position or, if it is known, by its
//! name, and never repeat what was written, which may be part of a key.

use std::borrow::Cow;
use std::net::IpAddr;

use azure_core::credentials::Secret;
use azure_core::http::Url;

use super::sign::AccountKey;

/// What is wrong with a connection string or URL, without its text, which may hold a secret.
type Problem = Cow<'static, str>;

/// The endpoint and credential of an account.
#[derive(Debug)]
pub(super) struct Account {
    /// The URL of the account, without a query; its path is `/`, or `/ACCOUNT` on an emulator.
    pub(super) endpoint: Url,
    pub(super) kind: EndpointKind,
    pub(super) credential: Credential,
    /// The URL of the account's blobs, if it is known.
    pub(super) blobs: Option<Url>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndpointKind {
    /// Azure: the host name contains the account.
    Service,
    /// An emulator: the path is the account, or the host is `*.localhost`.
    Emulator,
}

/// A service version that emulators of the last years accept by default and that has every feature used
/// here. Emulators reject the SDK's default.
pub(super) const EMULATOR_VERSION: &str = "2021-12-02";

/// How requests are authenticated.
#[derive(Debug)]
pub(super) enum Credential {
    Key(AccountKey),
    /// The query of a shared access signature, without `?`, escaped as in a URL.
    Signature(Secret),
    /// A token of Microsoft Entra ID.
    Entra,
}

/// The default account and key of every emulator, which are public.
const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";
const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl Account {
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        match text.split_once(':') {
            Some(("azure", rest)) => Self::with_entra(rest),
            Some(("https" | "http", _)) => Self::from_signed_url(text),
            _ => Self::from_settings(Settings::parse(text)?),
        }
    }

    fn from_settings(settings: Settings) -> Result<Self, Problem> {
        if settings.development {
            return Self::development(&settings);
        }
        if settings.development_proxy.is_some() {
            return Err("DevelopmentStorageProxyUri requires UseDevelopmentStorage=true".into());
        }
        let given = match (&settings.queue_endpoint, &settings.account) {
            (Some(endpoint), _) => endpoint.secret().to_owned(),
            (None, Some(account)) => {
                let protocol = settings.protocol.as_deref().unwrap_or("https");
                let suffix = settings.suffix.as_deref().unwrap_or("core.windows.net");
                format!("{protocol}://{}.queue.{suffix}", checked(account)?)
            }
            (None, None) => {
                return Err(
                    "the connection string has neither AccountName nor QueueEndpoint".into(),
                );
            }
        };
        let endpoint = Endpoint::parse(&given, settings.account.as_deref())?;
        endpoint.check_path(0)?;
        let blobs = match &settings.blob_endpoint {
            Some(given) => Some(Endpoint::parse(given.secret(), settings.account.as_deref())?.root),
            None => endpoint.blobs(),
        };
        if endpoint.query.is_some() && (settings.key.is_some() || settings.signature.is_some()) {
            return Err(
                "the queue endpoint must not have a query beside AccountKey or \
                 SharedAccessSignature"
                    .into(),
            );
        }
        let credential = match (settings.key, settings.signature) {
            (Some(_), Some(_)) => {
                return Err(
                    "the connection string has both AccountKey and SharedAccessSignature; use one \
                     of them"
                        .into(),
                );
            }
            (Some(key), None) => Credential::Key(AccountKey::decode(&endpoint.account, &key)?),
            (None, Some(signature)) => endpoint.signed_by(signature.secret())?,
            (None, None) => match &endpoint.query {
                Some(query) => endpoint.signed_by(query.secret())?,
                None => {
                    return Err(
                        "the connection string has neither AccountKey nor SharedAccessSignature; for \
                         Entra ID use `azure://ACCOUNT`"
                            .into(),
                    );
                }
            },
        };
        if let (Credential::Signature(_), Some(blobs)) = (&credential, &blobs) {
            check_signed(blobs)?;
        }
        let mut account = endpoint.with(credential);
        account.blobs = blobs;
        Ok(account)
    }

    fn development(settings: &Settings) -> Result<Self, Problem> {
        let alone = Settings {
            development: true,
            development_proxy: settings.development_proxy.clone(),
            ..Settings::default()
        };
        if *settings != alone {
            return Err(
                "UseDevelopmentStorage can be combined only with DevelopmentStorageProxyUri".into(),
            );
        }
        let root = match settings.development_proxy.as_deref() {
            Some(proxy) => development_root(proxy)
                .map_err(|problem| format!("DevelopmentStorageProxyUri: {problem}"))?,
            None => "http://127.0.0.1".to_owned(),
        };
        let given = format!("{root}:10001/{DEVELOPMENT_ACCOUNT}");
        let endpoint = Endpoint::parse(&given, Some(DEVELOPMENT_ACCOUNT))?;
        let key = Secret::new(DEVELOPMENT_KEY);
        let key = AccountKey::decode(DEVELOPMENT_ACCOUNT, &key)?;
        let mut account = endpoint.with(Credential::Key(key));
        account.blobs = Url::parse(&format!("{root}:10000/{DEVELOPMENT_ACCOUNT}")).ok();
        Ok(account)
    }

    fn with_entra(rest: &str) -> Result<Self, Problem> {
        let host = rest.trim_start_matches('/').trim_end_matches('/');
        let host = if host.contains('.') {
            host.to_owned()
        } else {
            format!("{}.queue.core.windows.net", checked(host)?)
        };
        let endpoint = Endpoint::parse(&format!("https://{host}"), None)?;
        endpoint.check_path(0)?;
        if endpoint.query.is_some() {
            return Err(
                "`azure://ACCOUNT` takes no query; a SAS URL starts with `https://`".into(),
            );
        }
        Ok(endpoint.with(Credential::Entra))
    }

    fn from_signed_url(text: &str) -> Result<Self, Problem> {
        let endpoint = Endpoint::parse(text, None)?;
        // The path may go on with a queue's name: a signature for one queue is also used on the account's URL.
        endpoint.check_path(1)?;
        match &endpoint.query {
            Some(query) => {
                let credential = endpoint.signed_by(query.secret())?;
                Ok(endpoint.with(credential))
            }
            None => Err(
                "the URL has no signature (`sig=…`); for Entra ID use `azure://ACCOUNT`, for an \
                 account key a connection string"
                    .into(),
            ),
        }
    }
}

/// An endpoint as the user gave it.
struct Endpoint {
    root: Url,
    account: String,
    kind: EndpointKind,
    query: Option<Secret>,
    /// The number of segments of the path after the account.
    further: usize,
}

impl Endpoint {
    fn parse(given: &str, account: Option<&str>) -> Result<Self, Problem> {
        let url = Url::parse(given)
            .map_err(|error| format!("the queue endpoint is not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("the queue endpoint must be https or http".into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the queue endpoint must not contain user information".into());
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err("the queue endpoint has no host".into());
        };
        if url.fragment().is_some() {
            return Err("the queue endpoint must not have a fragment".into());
        }
        let path = url.path().trim_matches('/');
        let segments: Vec<&str> = path.split('/').filter(|_| !path.is_empty()).collect();
        let (path, named, kind, further) = match segments.first() {
            Some(first) if is_private(host) || account == Some(first) => (
                format!("/{first}"),
                (*first).to_owned(),
                EndpointKind::Emulator,
                segments.len() - 1,
            ),
            None if is_private(host) => {
                return Err(
                    "the queue endpoint of an emulator must end with the account name".into(),
                );
            }
            _ => {
                let kind = if host.ends_with(".localhost") {
                    EndpointKind::Emulator
                } else {
                    EndpointKind::Service
                };
                ("/".to_owned(), first_label(host), kind, segments.len())
            }
        };
        let query = url
            .query()
            .filter(|query| !query.is_empty())
            .map(|query| Secret::new(query.to_owned()));
        let mut root = url.clone();
        root.set_query(None);
        root.set_path(&path);
        Ok(Self {
            root,
            account: account.map_or(named, str::to_owned),
            kind,
            query,
            further,
        })
    }

    /// Checks that the path has at most this many segments after the account; the segments are not used.
    fn check_path(&self, most: usize) -> Result<(), Problem> {
        let end = match self.kind {
            _ if self.further <= most => return Ok(()),
            EndpointKind::Service => "host",
            EndpointKind::Emulator => "account name",
        };
        let problem =
            format!("the path of the queue endpoint is not supported; it must end with the {end}");
        Err(problem.into())
    }

    fn signed_by(&self, query: &str) -> Result<Credential, Problem> {
        let query = query.trim_start_matches('?');
        if !query.split('&').any(|pair| pair.starts_with("sig=")) {
            return Err("the shared access signature has no `sig`".into());
        }
        check_signed(&self.root)?;
        let mut signed = self.root.clone();
        signed.set_query(Some(query));
        let escaped = signed.query().unwrap_or_default();
        Ok(Credential::Signature(Secret::new(escaped.to_owned())))
    }

    /// The URL of the blobs of an account whose host is Azure's.
    fn blobs(&self) -> Option<Url> {
        let (account, rest) = self.root.host_str()?.split_once(".queue.")?;
        let mut blobs = self.root.clone();
        let host = format!("{account}.blob.{rest}");
        let is_azure = self.kind == EndpointKind::Service;
        blobs.set_host(Some(&host)).ok().filter(|()| is_azure)?;
        Some(blobs)
    }

    fn with(self, credential: Credential) -> Account {
        Account {
            blobs: self.blobs(),
            endpoint: self.root,
            kind: self.kind,
            credential,
        }
    }
}

/// Returns scheme and host of the proxy of an emulator. The proxy's port is that of the emulator's queues.
fn development_root(proxy: &str) -> Result<String, Problem> {
    let url = Url::parse(proxy).map_err(|error| format!("it is not a URL: {error}"))?;
    let user = !url.username().is_empty() || url.password().is_some();
    let more = url.port().is_some()
        || !url.path().trim_matches('/').is_empty()
        || url.query().is_some()
        || url.fragment().is_some();
    match (url.scheme(), url.host_str()) {
        (scheme @ ("http" | "https"), Some(host)) if !user && !more => {
            Ok(format!("{scheme}://{host}"))
        }
        _ => Err(
            "it must be http://HOST; for another port or path, use a connection string with \
             QueueEndpoint"
                .into(),
        ),
    }
}

/// Whether a host can only be an emulator: an IP address, or a name without a domain.
fn is_private(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok() || !host.contains('.')
}

/// Checks that a signature, which anybody on the way can read and use, is not sent unencrypted to another machine.
fn check_signed(url: &Url) -> Result<(), Problem> {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_near = match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        // A name without a domain is that of a container beside this one.
        Err(_) => !host.contains('.') || host.ends_with(".localhost"),
    };
    if url.scheme() == "https" || is_near {
        return Ok(());
    }
    Err("a shared access signature must not be sent over http, except to this machine or to a host without a domain; \
         use https"
        .into())
}

fn first_label(host: &str) -> String {
    host.split('.').next().unwrap_or(host).to_owned()
}

/// Checks that an account name can be part of a host name.
fn checked(account: &str) -> Result<&str, Problem> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if account.is_empty() || !account.chars().all(allowed) {
        return Err("the account name must consist of lower-case letters and digits".into());
    }
    Ok(account)
}

/// The settings of endpoint and credential.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    development: bool,
    development_proxy: Option<String>,
    protocol: Option<String>,
    account: Option<String>,
    key: Option<Secret>,
    suffix: Option<String>,
    queue_endpoint: Option<Secret>,
    blob_endpoint: Option<Secret>,
    signature: Option<Secret>,
}

/// Settings of other services of the account.
const IGNORED: [&str; 8] = [
    "BlobSecondaryEndpoint",
    "DfsEndpoint",
    "DfsSecondaryEndpoint",
    "FileEndpoint",
    "FileSecondaryEndpoint",
    "QueueSecondaryEndpoint",
    "TableEndpoint",
    "TableSecondaryEndpoint",
];

const KNOWN: &str = "AccountName, AccountKey, SharedAccessSignature, DefaultEndpointsProtocol, \
                     EndpointSuffix, QueueEndpoint, BlobEndpoint, UseDevelopmentStorage, DevelopmentStorageProxyUri \
                     and the endpoints of other services";

impl Settings {
    fn parse(text: &str) -> Result<Self, Problem> {
        let mut settings = Self::default();
        let mut seen = Vec::new();
        let given = text.split(';').map(str::trim).enumerate();
        for (index, setting) in given.filter(|(_, setting)| !setting.is_empty()) {
            let position = index + 1;
            let Some((name, value)) = setting.split_once('=') else {
                return Err(format!(
                    "setting {position} of the connection string is not NAME=VALUE"
                )
                .into());
            };
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            if seen.contains(&name) {
                return Err(
                    format!("setting {position} of the connection string is a duplicate").into(),
                );
            }
            settings.take(&name, value, position)?;
            seen.push(name);
        }
        Ok(settings)
    }

    fn take(&mut self, name: &str, value: &str, position: usize) -> Result<(), Problem> {
        let text = Some(value.to_owned());
        let secret = Some(Secret::new(value.to_owned()));
        match name {
            "usedevelopmentstorage" if value.eq_ignore_ascii_case("true") => {
                self.development = true;
            }
            "usedevelopmentstorage" => return Err("UseDevelopmentStorage must be `true`".into()),
            "developmentstorageproxyuri" => self.development_proxy = text,
            "defaultendpointsprotocol" => match value.to_ascii_lowercase().as_str() {
                protocol @ ("http" | "https") => self.protocol = Some(protocol.to_owned()),
                _ => return Err("DefaultEndpointsProtocol must be `https` or `http`".into()),
            },
            "accountname" => self.account = text,
            "accountkey" => self.key = secret,
            "endpointsuffix" => self.suffix = text,
            "queueendpoint" => self.queue_endpoint = secret,
            "blobendpoint" => self.blob_endpoint = secret,
            "sharedaccesssignature" => self.signature = secret,
            other
                if IGNORED
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(other)) => {}
            _ => {
                return Err(format!(
                    "setting {position} of the connection string is unknown; known settings are {KNOWN}"
                ).into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
