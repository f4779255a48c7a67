use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use url::Url;

/// The blob endpoint of a storage account, and the credential for it.
pub struct Account {
    pub(super) name: String,
    /// The root of the account, without a query or a trailing slash.
    pub(super) endpoint: String,
    pub(super) is_emulator: bool,
    pub(super) credential: Credential,
}

/// The credential for an account.
pub(super) enum Credential {
    Key(String),
    /// The query string of a shared access signature.
    Signature(String),
    /// A token of Microsoft Entra ID.
    Entra,
}

/// An invalid connection string or URL. The text repeats none of it, since it may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Problem(String);

/// The well-known account and key of emulators. They are public.
const DEVELOPMENT_ACCOUNT: &str = "devstoreaccount1";
const DEVELOPMENT_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl Account {
    /// Reads a connection string, `azure://ACCOUNT`, or the URL of a blob endpoint with a shared
    /// access signature.
    ///
    /// # Errors
    /// [`Problem`] if it is invalid.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        match text.split_once(':') {
            Some(("azure", rest)) => {
                let host = rest.trim_matches('/');
                let url = if host.contains('.') {
                    format!("https://{host}")
                } else {
                    format!("https://{}.blob.core.windows.net", checked(host)?)
                };
                Endpoint::parse(&url, None)?.with(Some(Credential::Entra))
            }
            Some(("https" | "http", _)) => Endpoint::parse(text, None)?.with(None),
            _ => Self::from_settings(&settings(text)?),
        }
    }

    /// Reads the account from the URL or connection string of queues.
    ///
    /// # Errors
    /// [`Problem`] if it is invalid, or does not identify the endpoint of the blobs.
    pub fn beside(queue: &str) -> Result<Self, Problem> {
        let queue = queue.trim();
        let is_url = queue.starts_with("http:") || queue.starts_with("https:");
        if is_url && !queue.contains(".queue.") {
            return Err(problem(
                "the URL of the queues does not identify the endpoint of the blobs; give that, too",
            ));
        }
        if is_url || queue.starts_with("azure:") {
            Self::parse(&queue.replacen(".queue.", ".blob.", 1))
        } else {
            Self::parse(queue)
        }
    }

    fn from_settings(settings: &HashMap<String, &str>) -> Result<Self, Problem> {
        let given = |name: &str| settings.get(name).copied();
        if given("usedevelopmentstorage").is_some() {
            let host = given("developmentstorageproxyuri").unwrap_or("http://127.0.0.1");
            let url = format!("{}:10000/{DEVELOPMENT_ACCOUNT}", host.trim_end_matches('/'));
            let key = Credential::Key(DEVELOPMENT_KEY.to_owned());
            return Endpoint::parse(&url, Some(DEVELOPMENT_ACCOUNT))?.with(Some(key));
        }
        let account = given("accountname");
        let endpoint = match (given("blobendpoint"), account) {
            (Some(endpoint), _) => endpoint.to_owned(),
            (None, _) if given("queueendpoint").is_some() => {
                return Err(problem(
                    "the connection string has a QueueEndpoint but no BlobEndpoint",
                ));
            }
            (None, Some(account)) => {
                let protocol = given("defaultendpointsprotocol").unwrap_or("https");
                let suffix = given("endpointsuffix").unwrap_or("core.windows.net");
                format!("{protocol}://{}.blob.{suffix}", checked(account)?)
            }
            (None, None) => {
                return Err(problem(
                    "the connection string has neither AccountName nor BlobEndpoint",
                ));
            }
        };
        let key = given("accountkey").map(|key| Credential::Key(key.to_owned()));
        let signature = given("sharedaccesssignature");
        let signature = signature.map(|text| Credential::Signature(text.to_owned()));
        if key.is_some() && signature.is_some() {
            return Err(problem(
                "the connection string has both AccountKey and SharedAccessSignature; give one",
            ));
        }
        Endpoint::parse(&endpoint, account)?.with(key.or(signature))
    }
}

/// Omits the credential.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A parsed blob endpoint.
struct Endpoint {
    url: Url,
    account: String,
    is_emulator: bool,
}

impl Endpoint {
    fn parse(given: &str, account: Option<&str>) -> Result<Self, Problem> {
        let mut url = Url::parse(given)
            .map_err(|error| Problem(format!("the blob endpoint is not a URL: {error}")))?;
        let Some(host) = url.host_str() else {
            return Err(problem("the blob endpoint has no host"));
        };
        let is_plain = matches!(url.scheme(), "http" | "https") && url.username().is_empty();
        if !is_plain || url.password().is_some() {
            return Err(problem(
                "the blob endpoint must be https or http, without a user",
            ));
        }
        let is_emulator = is_private(host);
        let named = match url.path_segments().and_then(|mut parts| parts.next()) {
            Some(first) if is_emulator && !first.is_empty() => first.to_owned(),
            _ if is_emulator => {
                return Err(problem(
                    "the blob endpoint of an emulator must end with the account's name",
                ));
            }
            _ => host.split('.').next().unwrap_or(host).to_owned(),
        };
        let path = if is_emulator { named.as_str() } else { "" };
        url.set_path(path);
        Ok(Self {
            url,
            account: account.map_or(named, str::to_owned),
            is_emulator,
        })
    }

    /// Makes an account with this credential, or else with the signature in the endpoint's query.
    fn with(mut self, credential: Option<Credential>) -> Result<Account, Problem> {
        let query = self.url.query().map(str::to_owned);
        self.url.set_query(None);
        self.url.set_fragment(None);
        let credential = match (credential, query) {
            (Some(Credential::Entra), Some(_)) => {
                return Err(problem(
                    "`azure://ACCOUNT` takes no query; a SAS URL starts with `https://`",
                ));
            }
            (Some(credential), _) => credential,
            (None, Some(query)) => Credential::Signature(query),
            (None, None) => {
                return Err(problem(
                    "there is neither an account key nor a signature; for Entra ID use \
                     `azure://ACCOUNT`",
                ));
            }
        };
        if let Credential::Signature(query) = &credential {
            if !query.contains("sig=") {
                return Err(problem("the shared access signature has no `sig`"));
            }
            if self.url.scheme() == "http" && !is_near(self.url.host_str().unwrap_or_default()) {
                return Err(problem(
                    "a shared access signature must not be sent over http, except to this machine or to a host without \
                     a domain; use https",
                ));
            }
        }
        Ok(Account {
            name: self.account,
            endpoint: self.url.as_str().trim_end_matches('/').to_owned(),
            is_emulator: self.is_emulator,
            credential,
        })
    }
}

/// Parses the settings of a connection string, by their names in lower case.
fn settings(text: &str) -> Result<HashMap<String, &str>, Problem> {
    let mut settings = HashMap::new();
    let given = text.split(';').map(str::trim).enumerate();
    for (index, setting) in given.filter(|(_, setting)| !setting.is_empty()) {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(Problem(format!(
                "setting {} of the connection string is not NAME=VALUE",
                index + 1
            )));
        };
        settings.insert(name.trim().to_ascii_lowercase(), value.trim());
    }
    Ok(settings)
}

/// Whether a host can only be an emulator's: an IP address, or a name without a domain.
fn is_private(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok() || !host.contains('.')
}

/// Whether a host is this machine, or has no domain, as an emulator's container.
fn is_near(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => !host.contains('.'),
    }
}

/// Checks that an account's name can become part of a host name.
fn checked(account: &str) -> Result<&str, Problem> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !account.is_empty() && account.chars().all(allowed) {
        Ok(account)
    } else {
        Err(problem(
            "the account's name is not allowed; it consists of lower-case letters and digits",
        ))
    }
}

fn problem(text: &str) -> Problem {
    Problem(text.to_owned())
}

#[cfg(test)]
mod tests;
