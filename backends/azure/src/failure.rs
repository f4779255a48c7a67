//! Errors of the backend, without secrets, and their conversion to [`Error`].

use std::time::Duration;

use azure_core::error::ErrorKind as SdkKind;
use queue_core::{Error, ErrorKind, Operation, Outcome, RetryAdvice, Timestamp};

use super::service_error::ServiceError;
use super::transport::MAX_REPLY;

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
            // Only `entra` creates these, from texts without secrets.
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
