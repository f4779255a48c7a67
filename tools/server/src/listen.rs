//! Connections, bounds on what a client may send, the stop.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, DATE, HOST, HeaderName, SERVER};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use queue_azure_wire::code::Code;
use queue_azure_wire::sign;
use queue_azure_wire::{MAX_BODY, VERSION_HEADER};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::account::Account;
use crate::answer::{Answer, Refusal, date};
use crate::operation::Operation;
use crate::permit::{self, Peer};
use crate::target::{Resource, Target};
use crate::{message, origin, queue, service};

/// How long a client may take to send the head of a request, which is also how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(60);

/// How long a client may take to send a body.
const BODY: Duration = Duration::from_secs(30);

/// How long an operation may take unless the request says less.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long answers that are under way may take once the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// How long nothing is accepted after the system has refused a connection.
const PAUSE: Duration = Duration::from_millis(100);

const MAX_HEADERS: usize = 100;
const MAX_HEAD: usize = 32 * 1024;
/// Each may have a body under way.
const CONNECTIONS: usize = 2_048;
/// How many operations may be under way at once.
const REQUESTS: usize = 512;

/// The version whose behaviour this is, and the first that is spoken.
const VERSION: &str = "2026-04-06";
const FIRST_VERSION: &str = "2011-08-18";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-request-id");
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");

/// A server of some accounts.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use queue_core::{backend::Backend, clock::Clock};
/// # async fn serve(queues: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Result<(), Box<dyn std::error::Error>> {
/// use queue_server::{Account, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Server};
/// use tokio::net::TcpListener;
///
/// let account = Account::new(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, queues, clock)?;
/// let listener = TcpListener::bind("127.0.0.1:10001").await?;
/// Server::new(vec![account]).serve(listener, std::future::pending()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    accounts: Vec<Account>,
    requests: Semaphore,
}

impl Server {
    /// Creates a server of these accounts.
    #[must_use]
    pub fn new(accounts: Vec<Account>) -> Self {
        let shared = Shared {
            accounts,
            requests: Semaphore::new(REQUESTS),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Answers requests until `stop` completes, and then finishes those that have begun, for 10 seconds at most.
    ///
    /// # Errors
    /// If the address of the listener cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future ends all connections.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let address = listener.local_addr()?;
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let (graceful, mut stop) = (GracefulShutdown::new(), std::pin::pin!(stop));
        loop {
            let accept = async {
                let place = Arc::clone(&connections).acquire_owned().await;
                let place = place.expect("the semaphore is never closed");
                (listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                accepted = accept => accepted,
                () = &mut stop => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let connection = graceful.watch(self.connection(stream, peer, address));
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%peer, %error, "a connection has ended");
                }
                drop(place);
            });
        }
        drop(listener);
        if timeout(GRACE, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests that had begun were not answered before the server stopped");
        }
        Ok(())
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        address: SocketAddr,
    ) -> impl GracefulConnection<Error = hyper::Error> + use<> {
        // Only delays answers.
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&self.shared);
        let peer = Peer {
            address: peer.ip(),
            is_encrypted: false,
        };
        let answer = move |request| {
            let shared = Arc::clone(&shared);
            async move { Ok::<_, Infallible>(shared.answer(request, peer, address).await) }
        };
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service_fn(answer))
    }
}

impl Shared {
    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: Peer,
        address: SocketAddr,
    ) -> Response<Full<Bytes>> {
        let id = Uuid::new_v4().to_string();
        let (parts, body) = request.into_parts();
        let answer = self.carry_out(&parts, body, peer, address, &id).await;
        let mut answer = answer.unwrap_or_else(|refusal| refused(refusal, &parts, &id));
        answer.set(REQUEST_ID, &id);
        answer.set(
            HeaderName::from_static(VERSION_HEADER),
            version(&parts.headers).unwrap_or(VERSION),
        );
        answer.set(SERVER, concat!("queue-server/", env!("CARGO_PKG_VERSION")));
        if let Some(account) = self.accounts.first() {
            answer.set(DATE, &date(account.clock.now()));
        }
        if let Some(of_client) =
            text(&parts.headers, &CLIENT_REQUEST_ID).filter(|id| id.len() <= 1024)
        {
            answer.set(CLIENT_REQUEST_ID, of_client);
        }
        answer.into_response(parts.method == Method::HEAD)
    }

    async fn carry_out(
        &self,
        parts: &Parts,
        body: Incoming,
        peer: Peer,
        address: SocketAddr,
        id: &str,
    ) -> Result<Answer, Refusal> {
        let host = parts.uri.host().or_else(|| text(&parts.headers, &HOST));
        if address.ip().is_loopback() && !host.is_some_and(is_of_loopback) {
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
        let target = Target::read(&parts.uri, host)?;
        let account = self.accounts.iter().find(|one| one.name == target.account);
        let account = account.ok_or_else(|| {
            Refusal::with_detail(
                Code::AuthenticationFailed,
                "this server has no such account",
            )
        })?;
        if parts.method == Method::OPTIONS {
            return origin::preflight(account, &parts.headers).await;
        }
        let allowed = origin::check(account, parts.method.as_str(), &parts.headers).await?;
        let carried_out = self
            .carry_out_for(account, &target, parts, body, peer, host)
            .await;
        let Some(allowed) = allowed else {
            return carried_out;
        };
        // A page may read why it is refused, too.
        let mut answer = carried_out.unwrap_or_else(|refusal| refused(refusal, parts, id));
        allowed.mark(&mut answer);
        Ok(answer)
    }

    /// Carries out what is asked of an account.
    async fn carry_out_for(
        &self,
        account: &Account,
        target: &Target,
        parts: &Parts,
        body: Incoming,
        peer: Peer,
        host: Option<&str>,
    ) -> Result<Answer, Refusal> {
        let operation = Operation::of(&parts.method, target)?;
        let body = collect(body).await?;
        permit::check(account, operation, target, parts, body.len(), peer).await?;
        check_md5(&parts.headers, &body)?;
        let seconds = target.query.within("timeout", 0..=i64::MAX)?.unwrap_or(0);
        let patience = match seconds {
            0 => PATIENCE,
            seconds => Duration::from_secs(seconds.unsigned_abs()).min(PATIENCE),
        };
        // Taken once the client has sent everything: slow ones keep nobody from it.
        let _place = self.requests.try_acquire().map_err(|_| Code::ServerBusy)?;
        let endpoint = format!("http://{}/{}", host.unwrap_or_default(), account.name);
        let performed = perform(account, operation, target, parts, &body, &endpoint);
        let performed = timeout(patience, performed).await;
        performed.map_err(|_| Code::OperationTimedOut)?
    }
}

fn refused(refusal: Refusal, parts: &Parts, id: &str) -> Answer {
    let code = refusal.code.as_str();
    tracing::debug!(id, verb = %parts.method, path = parts.uri.path(), code, "a request was refused");
    refusal.into_answer(id)
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
        (_, Operation::GetProperties) => service::properties(account).await,
        (_, Operation::SetProperties) => service::set_properties(account, body).await,
        (_, Operation::GetStatistics) => service::statistics(account, target.is_secondary),
        (Resource::Queue(queue), Operation::CreateQueue) => {
            queue::create(account, queue, &parts.headers).await
        }
        (Resource::Queue(queue), Operation::DeleteQueue) => queue::delete(account, queue).await,
        (Resource::Queue(queue), Operation::GetMetadata) => queue::metadata(account, queue).await,
        (Resource::Queue(queue), Operation::SetMetadata) => {
            queue::set_metadata(account, queue, &parts.headers).await
        }
        (Resource::Queue(queue), Operation::GetAcl) => queue::acl(account, queue).await,
        (Resource::Queue(queue), Operation::SetAcl) => queue::set_acl(account, queue, body).await,
        (Resource::Messages(queue), Operation::Put) => {
            message::put(account, queue, query, body).await
        }
        (Resource::Messages(queue), Operation::Get) => message::get(account, queue, query).await,
        (Resource::Messages(queue), Operation::Peek) => message::peek(account, queue, query).await,
        (Resource::Messages(queue), Operation::Clear) => message::clear(account, queue).await,
        (Resource::Message(queue, id), Operation::Update) => {
            message::update(account, queue, id, query, body).await
        }
        (Resource::Message(queue, id), Operation::Delete) => {
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
