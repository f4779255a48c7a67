//! What the server tells of its requests: metrics, and a line for each in the log.

use http::StatusCode;
use http::request::Parts;
use metrics::{Unit, describe_gauge, describe_histogram, gauge, histogram};
use tokio::time::Instant;

use crate::account::Account;
use crate::answer::{Answer, Refusal};
use crate::operation::Operation;
use crate::request::{Peer, client_request_id};
use crate::target::Target;

const DURATION: &str = "http.server.request.duration.seconds";
const ACTIVE: &str = "http.server.active_requests";
const OPEN: &str = "http.server.open_connections";

/// Describes the metrics to the recorder, if there is one.
pub(crate) fn describe() {
    let duration = "time from the head of a request to its answer";
    describe_histogram!(DURATION, Unit::Seconds, duration);
    describe_gauge!(ACTIVE, Unit::Count, "requests that are not answered yet");
    describe_gauge!(OPEN, Unit::Count, "connections of clients");
}

/// Counts a connection as open until it is dropped.
pub(crate) fn connection() -> Gauged {
    Gauged::new(OPEN)
}

/// One of what a gauge counts, until it is dropped.
pub(crate) struct Gauged(&'static str);

impl Gauged {
    fn new(name: &'static str) -> Self {
        gauge!(name).increment(1.0);
        Self(name)
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        gauge!(self.0).decrement(1.0);
    }
}

/// A request, as far as it is known by now.
pub(crate) struct Observed<'r> {
    parts: &'r Parts,
    peer: Peer,
    id: &'r str,
    account: Option<&'r str>,
    queue: Option<String>,
    operation: Option<Operation>,
    /// The code of the refusal, if it was refused.
    code: Option<&'static str>,
    since: Instant,
    _active: Gauged,
}

impl<'r> Observed<'r> {
    pub(crate) fn new(parts: &'r Parts, peer: Peer, id: &'r str) -> Self {
        Self {
            parts,
            peer,
            id,
            account: None,
            queue: None,
            operation: None,
            code: None,
            since: Instant::now(),
            _active: Gauged::new(ACTIVE),
        }
    }

    pub(crate) fn target(&mut self, account: &'r Account, target: &Target) {
        self.account = Some(&account.name);
        self.queue = target.queue().map(ToString::to_string);
    }

    pub(crate) fn operation(&mut self, operation: Operation) {
        self.operation = Some(operation);
    }

    /// Makes the answer of a refusal.
    pub(crate) fn refused(&mut self, refusal: Refusal) -> Answer {
        self.code = Some(refusal.code.as_str());
        refusal.into_answer(self.id)
    }

    /// Tells how the request was answered. The query stays out of the log: it may have a signature or a receipt.
    pub(crate) fn answered(self, status: StatusCode) {
        let taken = self.since.elapsed();
        let operation = match self.operation {
            Some(operation) => format!("{operation:?}"),
            None => "_other".to_owned(),
        };
        let (code, status) = (self.code.unwrap_or_default(), status.as_u16());
        histogram!(
            DURATION,
            "operation" => operation.clone(),
            "http.response.status_code" => status.to_string(),
            "error.type" => code,
        )
        .record(taken);
        tracing::info!(
            target: "queue_server::access",
            id = self.id,
            client_id = client_request_id(&self.parts.headers),
            client = %self.peer.client,
            verb = %self.parts.method,
            path = ?self.parts.uri.path(),
            account = self.account,
            queue = self.queue,
            operation,
            status,
            code,
            milliseconds = taken.as_millis() as u64,
            "answered"
        );
    }
}
