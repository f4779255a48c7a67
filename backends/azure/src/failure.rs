//! Errors of the backend, without secrets, the meaning of the service's error replies, and their conversion to [`Error`].

use std::fmt;
use std::time::Duration;

use azure_core::error::ErrorKind as SdkKind;
use azure_core::http::headers::Headers;
use queue_azure_wire::xml::{Element, http_date};
use queue_core::internal::between;
use queue_core::{Error, ErrorKind, Operation, Outcome, RetryAdvice, Timestamp};

/// The maximum length of a reply, in bytes: 32 messages of 64 KiB with every character escaped.
pub(super) const MAX_REPLY: usize = 16 * 1024 * 1024;

/// An error. The SDK's errors, which contain URLs and replies, are not kept as sources.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Failure {
    /// The request was not sent.
    #[error("{0}")]
    Connect(String),
    /// The request may have been sent and executed.
    #[error("{0}")]
    Broken(String),
    #[error("the reply is longer than {MAX_REPLY} bytes")]
    TooLong,
    /// The reply is not certainly the service's.
    #[error("{0}")]
    Foreign(Box<ServiceError>),
    #[error("{0}")]
    Service(Box<ServiceError>),
    /// No credential provided a token; the reason for each.
    #[error("{0}")]
    Credential(String),
    #[error("after {after:?}")]
    Deadline { after: Duration, sent: bool },
    /// A successful reply that cannot be interpreted.
    #[error("the reply of the service is invalid: {0}")]
    Malformed(&'static str),
    /// The SDK refused the call.
    #[error("the client library rejected the call")]
    Refused,
    /// The current runtime has no timer, so the call would have no deadline.
    #[error("the Tokio runtime has no timer; build it with `enable_all()`")]
    NoTimer,
}

impl Failure {
    pub(super) fn from_sdk(error: azure_core::Error) -> Self {
        if let Some(failure) = error.downcast_ref::<Self>() {
            return failure.clone();
        }
        match error.kind() {
            SdkKind::HttpResponse {
                status,
                raw_response,
                ..
            } => {
                let (headers, body): (_, &[u8]) = match raw_response {
                    Some(reply) => (Some(reply.headers()), reply.body()),
                    None => (None, &[]),
                };
                let error = ServiceError::read(u16::from(*status), headers, body);
                Self::Service(Box::new(error))
            }
            // Only `entra` creates credential errors, from texts without secrets.
            SdkKind::Credential => Self::Credential(error.to_string()),
            SdkKind::DataConversion => Self::Malformed("unexpected XML"),
            _ => Self::Refused,
        }
    }

    /// Whether the service answered with this code.
    pub(super) fn has_code(&self, code: &str) -> bool {
        matches!(self, Self::Service(error) if error.has_code(code))
    }

    /// Converts the failure to the contract's error. `now` is this machine's time.
    pub(super) fn into_error(self, operation: Operation, now: Timestamp) -> Error {
        let failed = |kind| Error::new(kind, operation).with_detail(self.to_string());
        let unknown = |kind| failed(kind).with_outcome(Outcome::Unknown);
        match &self {
            Self::Service(reply) | Self::Foreign(reply) => reply.to_error(operation, now),
            Self::Connect(_) => failed(ErrorKind::Unreachable).unsent(),
            Self::Broken(_) => unknown(ErrorKind::Unreachable),
            // The service may answer properly the next time.
            Self::TooLong | Self::Malformed(_) => {
                unknown(ErrorKind::Corrupt).with_retry(RetryAdvice::Temporary)
            }
            // A token service may be temporarily unavailable, so listeners retry.
            Self::Credential(_) => failed(ErrorKind::Denied)
                .with_retry(RetryAdvice::Temporary)
                .unsent(),
            Self::Deadline { sent: true, .. } => unknown(ErrorKind::Timeout),
            Self::Deadline { sent: false, .. } => failed(ErrorKind::Timeout).unsent(),
            Self::Refused => failed(ErrorKind::InvalidInput).unsent(),
            Self::NoTimer => failed(ErrorKind::Unsupported).unsent(),
        }
    }
}

/// The header that every reply of the service has.
pub(super) const REQUEST_ID: &str = "x-ms-request-id";

/// The header of an error's code.
pub(super) const ERROR_CODE: &str = "x-ms-error-code";

/// An error reply, without its message, which may repeat the string to sign.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceError {
    status: u16,
    /// The service's error code. Without a code, the reply is that of a proxy or gateway, which may have passed the
    /// request on before.
    code: Option<String>,
    /// The query parameter or header that the service rejects.
    parameter: Option<String>,
    request_id: Option<String>,
    retry_after: Option<RetryAfter>,
    /// The service's time of the reply.
    date: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum RetryAfter {
    For(Duration),
    Until(Timestamp),
}

/// The clock skew above which it is mentioned; the service rejects signatures at 15 minutes.
const TOLERATED_SKEW: Duration = Duration::from_secs(5 * 60);

/// The longest delay that is believed of a reply that is not certainly the service's, whose sender knows nothing of the
/// service: it is a listener's longest pause during an outage.
const MAX_FOREIGN_DELAY: Duration = Duration::from_secs(30);

impl ServiceError {
    pub(super) fn read(status: u16, headers: Option<&Headers>, body: &[u8]) -> Self {
        let mut error = Self {
            status,
            ..Self::default()
        };
        let mut milliseconds = None;
        for (name, value) in headers.into_iter().flat_map(Headers::iter) {
            let value = value.as_str().trim();
            match name.as_str() {
                ERROR_CODE => error.code = word(value),
                REQUEST_ID => error.request_id = word(value),
                "date" => error.date = http_date(value),
                "retry-after" => error.retry_after = RetryAfter::parse(value),
                "x-ms-retry-after-ms" | "retry-after-ms" => milliseconds = value.parse().ok(),
                _ => {}
            }
        }
        if let Some(milliseconds) = milliseconds {
            error.retry_after = Some(RetryAfter::For(Duration::from_millis(milliseconds)));
        }
        if let Some(root) = Element::parse(body)
            && root.is("Error")
        {
            let element = |name| root.child(name).and_then(|child| word(&child.text));
            error.code = error.code.or_else(|| element("Code"));
            error.parameter = element("QueryParameterName").or_else(|| element("HeaderName"));
        }
        error
    }

    /// Reads a reply that is not certainly the service's, of which nothing is believed but the delay that it asks for,
    /// up to [`MAX_FOREIGN_DELAY`].
    pub(super) fn foreign(status: u16, headers: &Headers) -> Self {
        let read = Self::read(status, Some(headers), &[]);
        let asked = read.retry_after.and_then(|after| after.since(read.date));
        Self {
            code: None,
            retry_after: asked.map(|asked| RetryAfter::For(asked.min(MAX_FOREIGN_DELAY))),
            ..read
        }
    }

    /// Whether the reply refuses the request without a code of the service's, so that it is not certainly the service's.
    pub(super) fn is_uncoded(&self) -> bool {
        matches!(self.status, 400..=499) && self.code.is_none()
    }

    pub(super) fn has_code(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    pub(super) fn to_error(&self, operation: Operation, now: Timestamp) -> Error {
        let (kind, outcome) = self.classify(operation);
        let mut detail = self.to_string();
        if let (ErrorKind::Denied, Some(date)) = (kind, self.date)
            && let Some(skew) = skew(now, date)
        {
            detail.push_str("; ");
            detail.push_str(&skew);
        }
        let error = Error::new(kind, operation)
            .with_outcome(outcome)
            .with_detail(detail);
        let error = match &self.code {
            Some(code) => error.with_code(code.as_str()),
            None => error,
        };
        let after = self.retry_after.and_then(|after| after.since(self.date));
        match (kind, error.retry(), after) {
            (ErrorKind::Throttled, _, after) => error.with_retry(RetryAdvice::Throttled(after)),
            (_, RetryAdvice::Temporary, _) => {
                let again = |after| RetryAdvice::Throttled(Some(after));
                error.with_retry(after.map_or(RetryAdvice::Temporary, again))
            }
            _ => error,
        }
    }

    fn classify(&self, operation: Operation) -> (ErrorKind, Outcome) {
        use ErrorKind as Kind;
        use Outcome::{NotDone, Unknown};
        let on_receipt = matches!(operation, Operation::Update | Operation::Delete)
            && self.parameter.as_deref() == Some("popreceipt");
        match (self.status, self.code.as_deref()) {
            (_, Some("QueueNotFound" | "ResourceNotFound")) => (Kind::QueueNotFound, NotDone),
            (_, Some("MessageNotFound")) => (Kind::MessageNotFound, NotDone),
            (_, Some("PopReceiptMismatch")) => (Kind::ReceiptMismatch, NotDone),
            (400, Some(_)) if on_receipt => (Kind::ReceiptMismatch, NotDone),
            (_, Some("QueueAlreadyExists")) => (Kind::QueueExists, NotDone),
            (_, Some("QueueBeingDeleted")) => (Kind::QueueBeingDeleted, NotDone),
            (_, Some("QueueDisabled")) => (Kind::Denied, NotDone),
            (413, Some(_)) | (_, Some("RequestBodyTooLarge" | "MessageTooLarge")) => {
                (Kind::TooLarge, NotDone)
            }
            (401 | 403, Some(_)) => (Kind::Denied, NotDone),
            (429, Some(_)) | (_, Some("ServerBusy")) => (Kind::Throttled, NotDone),
            (_, Some("OperationTimedOut")) | (429 | 503, _) => (Kind::Throttled, Unknown),
            (408, _) => (Kind::Timeout, Unknown),
            (502 | 504, _) => (Kind::Unreachable, Unknown),
            (405 | 501, Some(_)) => (Kind::Unsupported, NotDone),
            (400, Some(_)) if self.parameter.as_deref() == Some("x-ms-version") => {
                (Kind::Unsupported, NotDone)
            }
            (400..=499, _) if !self.is_uncoded() => (Kind::InvalidInput, NotDone),
            (500.., _) => (Kind::Storage, Unknown),
            _ => (Kind::Unreachable, Unknown),
        }
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "HTTP {} {code}", self.status)?,
            None => write!(
                f,
                "HTTP {}, not certainly from the service itself: no `{REQUEST_ID}`, no error code, or a page",
                self.status
            )?,
        }
        if let Some(parameter) = &self.parameter {
            write!(f, " about `{parameter}`")?;
        }
        if let Some(id) = &self.request_id {
            write!(f, ", request {id}")?;
        }
        Ok(())
    }
}

impl RetryAfter {
    fn parse(value: &str) -> Option<Self> {
        match value.parse() {
            Ok(seconds) => Some(Self::For(Duration::from_secs(seconds))),
            Err(_) => http_date(value).map(Self::Until),
        }
    }

    /// Returns the delay after a reply of that date. Without a date, a moment means nothing: this machine's clock
    /// may differ from the service's.
    fn since(self, replied: Option<Timestamp>) -> Option<Duration> {
        match self {
            Self::For(duration) => Some(duration),
            Self::Until(moment) => replied.map(|replied| between(replied, moment)),
        }
    }
}

/// Returns a value that is safe to show: a short word, like the service's codes and names.
fn word(value: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let shown = (1..=64).contains(&value.len()) && value.chars().all(allowed);
    shown.then(|| value.to_owned())
}

fn skew(now: Timestamp, service: Timestamp) -> Option<String> {
    let (ahead, behind) = (between(service, now), between(now, service));
    let (by, direction) = if ahead > behind {
        (ahead, "ahead of")
    } else {
        (behind, "behind")
    };
    (by > TOLERATED_SKEW).then(|| {
        let minutes = by.as_secs().div_ceil(60);
        format!("this machine's clock is {minutes} minutes {direction} the service's")
    })
}

#[cfg(test)]
mod tests;
