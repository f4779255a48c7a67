//! Which account, queue and message a request names, and its parameters.

use http::Uri;
use percent_encoding::percent_decode_str;
use queue_azure_wire::code::Code;
use queue_core::backend::StorageId;
use queue_core::{InvalidName, InvalidNameKind, QueueName};

use crate::answer::Refusal;

/// What a request names.
#[derive(Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) account: String,
    /// Whether the host names the account, and not the path.
    is_of_host: bool,
    /// Whether it is the account's second region, from which is only read.
    pub(crate) is_secondary: bool,
    pub(crate) resource: Resource,
    pub(crate) query: Query,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Resource {
    Service,
    Queue(QueueName),
    Messages(QueueName),
    Message(QueueName, StorageId),
}

/// The names and values of the query, without escapes.
#[derive(Debug, PartialEq)]
pub(crate) struct Query(pub(crate) Vec<(String, String)>);

/// What the hosts of accounts have in common: `ACCOUNT.queue.localhost`, or a suffix of the operator's network.
const HOST: &str = ".queue.";

/// How many parameters a query may have: the operation with the most has 5, a signature 12.
const MAX_PARAMETERS: usize = 32;

const SECONDARY: &str = "-secondary";

impl Target {
    /// A host names an account if one has its name: `db.queue.example` may be the name of a machine.
    pub(crate) fn read(
        uri: &Uri,
        host: Option<&str>,
        has_account: impl Fn(&str) -> bool,
    ) -> Result<Self, Refusal> {
        let mut segments = segments(uri.path())?;
        let of_host = host.and_then(|host| host.split_once(HOST));
        let of_host = of_host.map(|(name, _)| region(name));
        let of_host = of_host.filter(|(account, _)| has_account(account));
        let is_of_host = of_host.is_some();
        let (account, is_secondary) = match of_host {
            Some((account, is_secondary)) => (account.to_owned(), is_secondary),
            None if segments.is_empty() => return Err(Code::InvalidUri.into()),
            None => {
                let name = segments.remove(0);
                let (account, is_secondary) = region(&name);
                (account.to_owned(), is_secondary)
            }
        };
        let query = Query::read(uri.query().unwrap_or_default())?;
        let queue = |name: &str| {
            let invalid = |error: InvalidName| {
                let code = match error.kind() {
                    InvalidNameKind::Length(_) => Code::OutOfRangeInput,
                    _ => Code::InvalidResourceName,
                };
                Refusal::with_detail(code, error.to_string())
            };
            name.parse::<QueueName>().map_err(invalid)
        };
        let resource = match &segments[..] {
            [] => Resource::Service,
            [name] => Resource::Queue(queue(name)?),
            [name, messages] if messages == "messages" => Resource::Messages(queue(name)?),
            [name, messages, id] if messages == "messages" => {
                Resource::Message(queue(name)?, StorageId::new(id))
            }
            _ => return Err(Code::InvalidUri.into()),
        };
        Ok(Self {
            account,
            is_of_host,
            is_secondary,
            resource,
            query,
        })
    }

    /// Returns the address of the account's queues, as the client has named it.
    pub(crate) fn endpoint(&self, host: &str, is_encrypted: bool) -> String {
        let scheme = if is_encrypted { "https" } else { "http" };
        match (self.is_of_host, self.is_secondary) {
            (true, _) => format!("{scheme}://{host}/"),
            (false, false) => format!("{scheme}://{host}/{}", self.account),
            (false, true) => format!("{scheme}://{host}/{}{SECONDARY}", self.account),
        }
    }

    pub(crate) fn queue(&self) -> Option<&QueueName> {
        match &self.resource {
            Resource::Service => None,
            Resource::Queue(queue) | Resource::Messages(queue) | Resource::Message(queue, _) => {
                Some(queue)
            }
        }
    }
}

/// Returns the account of a name, and whether its second region is meant.
fn region(name: &str) -> (&str, bool) {
    match name.strip_suffix(SECONDARY) {
        Some(account) => (account, true),
        None => (name, false),
    }
}

/// Returns the parts of a path, without escapes. A slash at its end means nothing behind an account; behind `messages`, an id is
/// missing, and what is meant for one message must not be done to all.
fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = match path.strip_suffix('/') {
        Some(account) if !account.contains('/') => account,
        _ => path,
    };
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(segment).collect()
}

fn segment(escaped: &str) -> Result<String, Refusal> {
    let decoded = percent_decode_str(escaped).decode_utf8();
    let decoded = decoded.map_err(|_| Code::InvalidUri)?;
    let is_unfit = matches!(&*decoded, "" | "." | "..") || decoded.chars().any(char::is_control);
    if is_unfit {
        return Err(Code::InvalidUri.into());
    }
    Ok(decoded.into_owned())
}

impl Query {
    fn read(query: &str) -> Result<Self, Refusal> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |text: &str| {
                let decoded = percent_decode_str(text).decode_utf8();
                decoded
                    .map(String::from)
                    .map_err(|_| Refusal::from(Code::InvalidUri))
            };
            if pairs.len() == MAX_PARAMETERS {
                let detail = format!("the query has more than {MAX_PARAMETERS} parameters");
                return Err(Refusal::with_detail(Code::InvalidUri, detail));
            }
            let (name, value) = (decoded(name)?.to_ascii_lowercase(), decoded(value)?);
            if pairs.iter().any(|(other, _)| *other == name) {
                // Which of them is meant, and which of them was signed, need not be the same.
                return Err(Refusal::of_parameter(
                    Code::InvalidQueryParameterValue,
                    &name,
                    &value,
                ));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|pair| pair.0 == name);
        found.map(|pair| pair.1.as_str())
    }

    /// Returns a number, if there is one.
    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, Refusal> {
        let Some(value) = self.find(name) else {
            return Ok(None);
        };
        let number = value
            .parse()
            .map_err(|_| Refusal::of_parameter(Code::InvalidQueryParameterValue, name, value));
        number.map(Some)
    }

    /// Returns a number within these bounds, if there is one.
    pub(crate) fn within(
        &self,
        name: &str,
        bounds: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, Refusal> {
        let number = self.number::<i64>(name)?;
        match number {
            Some(number) if !bounds.contains(&number) => {
                let value = self.find(name).unwrap_or_default();
                Err(Refusal::of_parameter(
                    Code::OutOfRangeQueryParameterValue,
                    name,
                    value,
                ))
            }
            number => Ok(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &str, host: Option<&str>) -> Result<Target, Code> {
        let uri: Uri = uri.parse().expect("a URI");
        Target::read(&uri, host, |account| account == "acct").map_err(|refusal| refusal.code)
    }

    #[test]
    fn an_account_is_named_by_the_path_or_by_the_host() {
        let of_path = read("/acct/orders/messages/a%2Fb?popreceipt=x%2By+z", None).expect("valid");
        let of_host = read(
            "/orders/messages/a%2Fb?PopReceipt=x%2By+z",
            Some("acct.queue.localhost:10001"),
        );
        let of_host = of_host.expect("valid");
        assert_eq!(of_path.endpoint("h", false), "http://h/acct");
        assert_eq!(of_host.endpoint("h", true), "https://h/");
        assert_eq!(
            (&of_path.resource, &of_path.query),
            (&of_host.resource, &of_host.query)
        );
        assert_eq!(of_host.account, "acct");
        let of_machine = read("/acct/orders", Some("db.queue.example")).expect("valid");
        assert_eq!(of_machine.account, "acct");
        assert_eq!(of_path.account, "acct");
        assert_eq!(of_path.query.find("popreceipt"), Some("x+y+z"));
        let Resource::Message(queue, id) = &of_path.resource else {
            panic!("{of_path:?}");
        };
        assert_eq!((queue.as_str(), id.as_str()), ("orders", "a/b"));
        let second = read("/acct-secondary?comp=list", Some("localhost")).expect("valid");
        assert!(second.is_secondary && second.account == "acct");
        assert_eq!(second.resource, Resource::Service);
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for (uri, code) in [
            ("/", Code::InvalidUri),
            ("/acct//messages", Code::InvalidUri),
            ("/acct/%2e%2e/messages", Code::InvalidUri),
            ("/acct/./messages", Code::InvalidUri),
            ("/acct/orders%00", Code::InvalidUri),
            ("/acct/orders/%ff", Code::InvalidUri),
            ("/acct/orders/letters", Code::InvalidUri),
            ("/acct/orders/messages/1/2", Code::InvalidUri),
            ("/acct/Orders", Code::InvalidResourceName),
            ("/acct/orders%2Fmessages", Code::InvalidResourceName),
            (
                "/acct?comp=list&COMP=list",
                Code::InvalidQueryParameterValue,
            ),
            ("/acct?comp=%ff", Code::InvalidUri),
        ] {
            assert_eq!(read(uri, None), Err(code), "{uri}");
        }
    }

    #[test]
    fn numbers_are_numbers_within_their_bounds() {
        let target = read(
            "/acct/orders/messages?numofmessages=33&visibilitytimeout=soon",
            None,
        );
        let query = target.expect("valid").query;
        let code = |refusal: Refusal| refusal.code;
        let numbers = query.within("numofmessages", 1..=32).map_err(code);
        assert_eq!(numbers, Err(Code::OutOfRangeQueryParameterValue));
        let timeout = query.within("visibilitytimeout", 0..=7).map_err(code);
        assert_eq!(timeout, Err(Code::InvalidQueryParameterValue));
        assert_eq!(query.within("timeout", 0..=7).map_err(code), Ok(None));
    }
}
