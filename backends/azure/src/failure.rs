//! Errors of the backend, without secrets, and their conversion to [`Error`].

use std::time::Duration;

use azure_core::error::ErrorKind as SdkKind;
use queue_core::{Error, ErrorKind, Operation, Outcome, RetryAdvice, Timestamp};

use super::service_error::ServiceError;
use super::transport::TransportFailure;

/// An error. The SDK's errors, which contain URLs and replies, are not kept as sources.
#[derive(Debug)]
pub(super) enum Failure {
    Transport(TransportFailure),
    Service(Box<ServiceError>),
    /// No credential provided a token; the reason for each.
    Credential(String),
    Deadline {
        after: Duration,
        sent: bool,
    },
    /// A successful reply that cannot be interpreted.
    Malformed(&'static str),
    /// The SDK refused the call.
    Refused,
    /// The current runtime has no timer, so the call would have no deadline.
    NoTimer,
}

impl Failure {
    pub(super) fn from_sdk(error: azure_core::Error) -> Self {
        if let Some(failure) = error.downcast_ref::<TransportFailure>() {
            return Self::Transport(failure.clone());
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

    /// Converts the failure to the contract's error. `now` is this machine's time.
    pub(super) fn into_error(self, operation: Operation, now: Timestamp) -> Error {
        let error = |kind| Error::new(kind, operation);
        match self {
            Self::Transport(failure) => {
                let (kind, outcome) = match failure {
                    TransportFailure::Connect(_) => (ErrorKind::Unreachable, Outcome::NotDone),
                    TransportFailure::Broken(_) => (ErrorKind::Unreachable, Outcome::Unknown),
                    TransportFailure::TooLong | TransportFailure::Foreign => {
                        (ErrorKind::Corrupt, Outcome::Unknown)
                    }
                };
                let error = error(kind).with_outcome(outcome);
                let error = match failure {
                    // The proxy may not interfere the next time.
                    TransportFailure::Foreign => error.with_retry(RetryAdvice::Temporary),
                    TransportFailure::Connect(_) => error.unsent(),
                    _ => error,
                };
                error.with_detail(failure.to_string())
            }
            Self::Service(service) => service.into_error(operation, now),
            // A token service may be temporarily unavailable, so listeners retry.
            Self::Credential(told) => error(ErrorKind::Denied)
                .with_retry(RetryAdvice::Temporary)
                .with_detail(told)
                .unsent(),
            Self::Deadline { after, sent } => {
                let error = error(ErrorKind::Timeout).with_detail(format!("after {after:?}"));
                if sent {
                    error.with_outcome(Outcome::Unknown)
                } else {
                    error.unsent()
                }
            }
            Self::Malformed(what) => error(ErrorKind::Corrupt)
                .with_retry(RetryAdvice::Temporary)
                .with_outcome(Outcome::Unknown)
                .with_detail(format!("the reply of the service is invalid: {what}")),
            Self::Refused => error(ErrorKind::InvalidInput)
                .with_detail("the client library rejected the call")
                .unsent(),
            Self::NoTimer => error(ErrorKind::Unsupported)
                .with_detail("the Tokio runtime has no timer; build it with `enable_all()`")
                .unsent(),
        }
    }
}
