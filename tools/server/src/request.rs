//! A request, from its head to its answer.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, DATE, HOST, HeaderName, SERVER};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use queue_azure_wire::code::Code;
use queue_azure_wire::sign;
use queue_azure_wire::{MAX_BODY, VERSION_HEADER};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::account::Account;
use crate::answer::{Answer, Refusal, date};
use crate::observe::{self, Observed};
use crate::operation::Operation;
use crate::target::{Resource, Target};
use crate::{message, origin, permit, queue, readiness, service};

/// How long a client may take to send a body.
const BODY: Duration = Duration::from_secs(30);

/// How long an operation may take unless the request says less.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many operations may be under way at once.
const REQUESTS: usize = 512;

/// The version whose behaviour this is, and the first that is spoken.
const VERSION: &str = "2026-04-06";
const FIRST_VERSION: &str = "2011-08-18";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");

/// Where the requests of a connection come from.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// The address of the client.
    pub client: SocketAddr,
    /// The address that the server listens on.
    pub server: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
}

/// A request before its body.
#[derive(Clone, Copy)]
struct Head<'r> {
    parts: &'r Parts,
    peer: Peer,
    /// The host that the client has asked.
    host: Option<&'r str>,
}

/// Answers the requests to some accounts.
#[derive(Debug)]
pub(crate) struct Answers {
    accounts: Vec<Account>,
    places: Semaphore,
}

impl Answers {
    pub(crate) fn new(accounts: Vec<Account>) -> Self {
        observe::describe();
        Self {
            accounts,
            places: Semaphore::new(REQUESTS),
        }
    }

    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> Response<Full<Bytes>> {
        let id = Uuid::new_v4().to_string();
        let (parts, body) = request.into_parts();
        let mut observed = Observed::new(&parts, peer, &id);
        let head = Head {
            parts: &parts,
            peer,
            host: parts.uri.host().or_else(|| text(&parts.headers, &HOST)),
        };
        let answer = self.carry_out(head, body, &mut observed).await;
        let mut answer = answer.unwrap_or_else(|refusal| observed.refused(refusal));
        answer.set(REQUEST_ID, &id);
        answer.set(
            HeaderName::from_static(VERSION_HEADER),
            version(&parts.headers).unwrap_or(VERSION),
        );
        answer.set(SERVER, concat!("queue-server/", env!("CARGO_PKG_VERSION")));
        if let Some(account) = self.accounts.first() {
            answer.set(DATE, &date(account.clock.now()));
        }
        if let Some(of_client) = client_request_id(&parts.headers) {
            answer.set(CLIENT_REQUEST_ID, of_client);
        }
        observed.answered(answer.status);
        answer.into_response(parts.method == Method::HEAD)
    }

    async fn carry_out<'r>(
        &'r self,
        head: Head<'r>,
        body: Incoming,
        observed: &mut Observed<'r>,
    ) -> Result<Answer, Refusal> {
        let Head { parts, peer, host } = head;
        if readiness::is_asked(parts) {
            return readiness::answer(&self.accounts).await;
        }
        if peer.server.ip().is_loopback() && !host.is_some_and(is_of_loopback) {
            // A name that was rebound: a page of another site has this address under its own name.
            let detail =
                "this server listens on the loopback address, and the header Host names another";
            return Err(Refusal::with_detail(Code::InvalidHeaderValue, detail));
        }
        if parts.headers.contains_key(VERSION_HEADER) && version(&parts.headers).is_none() {
            let detail = format!("{VERSION_HEADER} is no version since {FIRST_VERSION}");
            return Err(Refusal::with_detail(Code::InvalidHeaderValue, detail));
        }
        refuse_repeated(&parts.headers)?;
        let has_account = |name: &str| self.accounts.iter().any(|account| account.name == name);
        let target = Target::read(&parts.uri, host, has_account)?;
        let account = self.accounts.iter().find(|one| one.name == target.account);
        let account = account.ok_or_else(|| {
            Refusal::with_detail(
                Code::AuthenticationFailed,
                "this server has no such account",
            )
        })?;
        observed.target(account, &target);
        if parts.method == Method::OPTIONS {
            return origin::preflight(account, &parts.headers).await;
        }
        let allowed = origin::check(account, parts.method.as_str(), &parts.headers).await?;
        let carried_out = self
            .carry_out_for(account, &target, head, body, observed)
            .await;
        let Some(allowed) = allowed else {
            return carried_out;
        };
        // A page may read why it is refused, too.
        let mut answer = carried_out.unwrap_or_else(|refusal| observed.refused(refusal));
        allowed.mark(&mut answer);
        Ok(answer)
    }

    /// Carries out what is asked of an account.
    async fn carry_out_for(
        &self,
        account: &Account,
        target: &Target,
        head: Head<'_>,
        body: Incoming,
        observed: &mut Observed<'_>,
    ) -> Result<Answer, Refusal> {
        let Head { parts, peer, host } = head;
        let operation = Operation::of(&parts.method, target)?;
        observed.operation(operation);
        let body = collect(body).await?;
        permit::check(account, operation, target, parts, body.len(), peer).await?;
        check_md5(&parts.headers, &body)?;
        let seconds = target.query.within("timeout", 0..=i64::MAX)?.unwrap_or(0);
        let patience = match seconds {
            0 => PATIENCE,
            seconds => Duration::from_secs(seconds.unsigned_abs()).min(PATIENCE),
        };
        if let (Some(limit), Some(queue)) = (&account.limit, target.queue())
            && !limit.admits(queue, account.clock.monotonic())
        {
            return Err(Code::ServerBusy.into());
        }
        // Taken once the client has sent everything: slow ones keep nobody from it.
        let _place = self.places.try_acquire().map_err(|_| Code::ServerBusy)?;
        let endpoint = target.endpoint(host.unwrap_or_default(), peer.is_encrypted);
        let performed = perform(account, operation, target, parts, &body, &endpoint);
        let performed = timeout(patience, performed).await;
        performed.map_err(|_| Code::OperationTimedOut)?
    }
}

/// Refuses a request that says twice what is signed or decides: the string to sign has one of the values, and what is carried
/// out could follow the other.
fn refuse_repeated(headers: &HeaderMap) -> Result<(), Refusal> {
    let decides = |name: &HeaderName| {
        name.as_str().starts_with("x-ms-") || sign::STANDARD_HEADERS.contains(&name.as_str())
    };
    let mut names = headers
        .keys()
        .filter(|name| decides(name) || *name == AUTHORIZATION || *name == HOST);
    match names.find(|name| headers.get_all(*name).iter().count() > 1) {
        Some(name) => Err(Refusal::with_detail(
            Code::InvalidHeaderValue,
            format!("the header {name} is there twice"),
        )),
        None => Ok(()),
    }
}

async fn perform(
    account: &Account,
    operation: Operation,
    target: &Target,
    parts: &Parts,
    body: &[u8],
    endpoint: &str,
) -> Result<Answer, Refusal> {
    let query = &target.query;
    match (&target.resource, operation) {
        (_, Operation::ListQueues) => service::list(account, query, endpoint).await,
        (_, Operation::GetServiceProperties) => service::properties(account).await,
        (_, Operation::SetServiceProperties) => service::set_properties(account, body).await,
        (_, Operation::GetServiceStats) => service::statistics(account, target.is_secondary),
        (Resource::Queue(queue), Operation::CreateQueue) => {
            queue::create(account, queue, &parts.headers).await
        }
        (Resource::Queue(queue), Operation::DeleteQueue) => queue::delete(account, queue).await,
        (Resource::Queue(queue), Operation::GetQueueMetadata) => {
            queue::metadata(account, queue).await
        }
        (Resource::Queue(queue), Operation::SetQueueMetadata) => {
            queue::set_metadata(account, queue, &parts.headers).await
        }
        (Resource::Queue(queue), Operation::GetQueueAcl) => queue::acl(account, queue).await,
        (Resource::Queue(queue), Operation::SetQueueAcl) => {
            queue::set_acl(account, queue, body).await
        }
        (Resource::Messages(queue), Operation::PutMessage) => {
            message::put(account, queue, query, body).await
        }
        (Resource::Messages(queue), Operation::GetMessages) => {
            message::get(account, queue, query).await
        }
        (Resource::Messages(queue), Operation::PeekMessages) => {
            message::peek(account, queue, query).await
        }
        (Resource::Messages(queue), Operation::ClearMessages) => {
            message::clear(account, queue).await
        }
        (Resource::Message(queue, id), Operation::UpdateMessage) => {
            message::update(account, queue, id, query, body).await
        }
        (Resource::Message(queue, id), Operation::DeleteMessage) => {
            message::delete(account, queue, id, query).await
        }
        _ => Err(Code::UnsupportedHttpVerb.into()),
    }
}

async fn collect(body: Incoming) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Code::RequestBodyTooLarge.into());
    }
    let collected = timeout(BODY, Limited::new(body, MAX_BODY).collect()).await;
    match collected {
        Err(_) => Err(Code::OperationTimedOut.into()),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Code::RequestBodyTooLarge.into()),
        Ok(Err(error)) => Err(Refusal::with_detail(Code::InvalidInput, error.to_string())),
    }
}

fn check_md5(headers: &HeaderMap, body: &[u8]) -> Result<(), Refusal> {
    use base64::Engine as _;
    use md5::{Digest as _, Md5};

    let Some(given) = headers.get("content-md5") else {
        return Ok(());
    };
    let own = base64::engine::general_purpose::STANDARD.encode(Md5::digest(body));
    if given.as_bytes() == own.as_bytes() {
        Ok(())
    } else {
        Err(Code::Md5Mismatch.into())
    }
}

/// Returns the version that a client speaks, if it is one of this service.
fn version(headers: &HeaderMap) -> Option<&str> {
    let version = headers.get(VERSION_HEADER)?.to_str().ok()?;
    let is_date =
        version.parse::<jiff::civil::Date>().is_ok() && version.len() == FIRST_VERSION.len();
    (is_date && version >= FIRST_VERSION).then_some(version)
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the id that a client has given its request, if it is one that can be repeated to it.
pub(crate) fn client_request_id(headers: &HeaderMap) -> Option<&str> {
    text(headers, &CLIENT_REQUEST_ID).filter(|id| id.len() <= 1024)
}

/// Whether a host, with or without a port, is this machine by a name that no other has.
fn is_of_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or(v6, |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let address = name.parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_of_this_machine_or_is_not() {
        for (host, expected) in [
            ("127.0.0.1:10001", true),
            ("[::1]:10001", true),
            ("localhost", true),
            ("acct.queue.localhost:10001", true),
            ("example.com", false),
            ("127.0.0.1.example.com", false),
            ("localhost.example.com:10001", false),
            ("", false),
        ] {
            assert_eq!(is_of_loopback(host), expected, "{host}");
        }
    }
}
