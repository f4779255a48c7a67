//! Errors of the engine, and what an error of the server proves.

#[cfg(feature = "sqlx")]
use std::error::Error as StdError;

use queue_core::backend::{FoundRecord, GROUPS_IN_USE};
use queue_core::internal::error_chain;
use queue_core::{Error, ErrorKind, Operation, Outcome, QueueName, RetryAdvice};
use tokio_postgres::error::{Severity, SqlState};

/// A `Result` of this crate.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why an operation failed. All but [`Corrupt`](Self::Corrupt), [`Unanswered`](Self::Unanswered) and
/// [`Trouble`](Self::Trouble) prove that nothing was done.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    QueueNotFound,
    QueueExists,
    /// Messages are in groups, and keep their order or take turns.
    GroupsInUse,
    MessageNotFound,
    ReceiptMismatch,
    /// A swap requires something else than what it has found.
    Conflict(Option<FoundRecord>),
    /// Another transaction holds the message or the record. Never an answer to a caller.
    Busy,
    /// An argument that only the engine can check.
    Invalid(String),
    /// What the server answered cannot be read.
    Corrupt(&'static str),
    /// The backend is closed, or the runtime on which it was opened has ended. Nothing was sent.
    Closed,
    /// The runtime ended before the answer came.
    Unanswered,
    /// The server is not one that may be used.
    Unfit(Error),
    /// The server or the connection failed.
    Trouble(Trouble),
}

/// A failure of the server or of the connection.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    kind: ErrorKind,
    retry: Option<RetryAdvice>,
    pub(crate) outcome: Outcome,
    unsent: bool,
    /// Whether the server refused the statement, and the connection goes on.
    pub(crate) is_refusal: bool,
    /// The SQLSTATE, if the server has answered.
    code: Option<String>,
    cause: Cause,
}

/// The text of an error of the driver. The server's details are left out, because they may quote rows.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

impl Failure {
    /// Whether the server refused the statement, so that the connection goes on and nothing was done.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Trouble(trouble) if trouble.is_refusal)
    }

    /// Records that nothing was committed: the failure came before the commit.
    pub(crate) fn not_done(mut self) -> Self {
        if let Self::Trouble(trouble) = &mut self {
            trouble.outcome = Outcome::NotDone;
        }
        self
    }

    /// The failure of a statement of an application's driver, before a commit, with the server's code if it has answered.
    #[cfg(feature = "sqlx")]
    pub(crate) fn of_another_driver(
        code: Option<&SqlState>,
        error: &(dyn StdError + 'static),
    ) -> Self {
        let (kind, retry) = code.map_or((ErrorKind::Unreachable, None), kind_of);
        Self::Trouble(Trouble {
            kind,
            retry,
            outcome: Outcome::NotDone,
            unsent: false,
            is_refusal: code.is_some(),
            code: code.map(|code| code.code().to_owned()),
            cause: Cause(error_chain(error)),
        })
    }

    /// The failure of a server that does not answer.
    pub(crate) fn silent() -> Self {
        Self::Trouble(Trouble {
            kind: ErrorKind::Unreachable,
            retry: None,
            outcome: Outcome::Unknown,
            unsent: false,
            is_refusal: false,
            code: None,
            cause: Cause("the server does not answer".to_owned()),
        })
    }

    /// The failure of a connection that was not established.
    pub(crate) fn unconnected(error: &tokio_postgres::Error) -> Self {
        let mut failure = Self::from(error).not_done();
        if let Self::Trouble(trouble) = &mut failure {
            trouble.unsent = true;
        }
        failure
    }

    pub(crate) fn into_error(self, operation: Operation, queue: Option<&QueueName>) -> Error {
        let new = |kind| {
            let error = Error::new(kind, operation);
            match queue {
                Some(queue) => error.with_queue(queue),
                None => error,
            }
        };
        let is_read = operation.only_reads();
        let of_change = |outcome| if is_read { Outcome::NotDone } else { outcome };
        match self {
            Self::QueueNotFound => new(ErrorKind::QueueNotFound),
            Self::QueueExists => new(ErrorKind::QueueExists),
            Self::GroupsInUse => new(ErrorKind::Conflict).with_detail(GROUPS_IN_USE),
            Self::MessageNotFound => new(ErrorKind::MessageNotFound),
            Self::ReceiptMismatch => new(ErrorKind::ReceiptMismatch),
            Self::Conflict(_) => new(ErrorKind::Conflict),
            Self::Busy => new(ErrorKind::Timeout)
                .with_detail("another transaction holds the message or the record"),
            Self::Invalid(detail) => new(ErrorKind::InvalidInput).with_detail(detail).unsent(),
            Self::Corrupt(detail) => new(ErrorKind::Corrupt)
                .with_detail(detail)
                .with_outcome(of_change(Outcome::Unknown)),
            Self::Closed => new(ErrorKind::Closed).unsent(),
            Self::Unanswered => new(ErrorKind::Closed).with_outcome(Outcome::Unknown),
            Self::Unfit(unfit) => new(unfit.kind())
                .with_retry(unfit.retry())
                .with_source(unfit)
                .unsent(),
            Self::Trouble(trouble) => {
                let mut error = new(trouble.kind)
                    .with_outcome(of_change(trouble.outcome))
                    .with_source(trouble.cause);
                if let Some(retry) = trouble.retry {
                    error = error.with_retry(retry);
                }
                if let Some(code) = trouble.code {
                    error = error.with_code(code);
                }
                if trouble.unsent {
                    error.unsent()
                } else {
                    error
                }
            }
        }
    }
}

/// The failure of a statement that commits by itself, or of a commit.
impl From<&tokio_postgres::Error> for Failure {
    fn from(error: &tokio_postgres::Error) -> Self {
        let Some(server) = error.as_db_error() else {
            return Self::Trouble(Trouble {
                kind: ErrorKind::Unreachable,
                retry: None,
                outcome: Outcome::Unknown,
                unsent: false,
                is_refusal: false,
                code: None,
                cause: Cause(error_chain(error)),
            });
        };
        // After an error, the transaction is rolled back. An error that ends the session proves nothing: it may come
        // while a commit waits for a standby.
        let is_refusal = server.parsed_severity() == Some(Severity::Error)
            && *server.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN;
        let (kind, retry) = kind_of(server.code());
        Self::Trouble(Trouble {
            kind,
            retry,
            outcome: if is_refusal {
                Outcome::NotDone
            } else {
                Outcome::Unknown
            },
            unsent: false,
            is_refusal,
            code: Some(server.code().code().to_owned()),
            cause: Cause(format!(
                "{}: {} (SQLSTATE {})",
                server.severity(),
                server.message(),
                server.code().code()
            )),
        })
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::from(&error)
    }
}

/// Returns the kind of an error of the server, and its advice if that is not the kind's.
fn kind_of(code: &SqlState) -> (ErrorKind, Option<RetryAdvice>) {
    let permanent = Some(RetryAdvice::Permanent);
    match code.code() {
        // The schema, a table or a function is gone.
        "3F000" | "42P01" | "42883" => (ErrorKind::Replaced, None),
        "42501" => (ErrorKind::Denied, None),
        "53300" => (ErrorKind::Throttled, None),
        "55P03" | "57014" => (ErrorKind::Timeout, None),
        // The server has become a standby.
        "25006" => (ErrorKind::Storage, permanent),
        "XX001" | "XX002" => (ErrorKind::Corrupt, None),
        code if code.starts_with("28") => (ErrorKind::Denied, None),
        code if code.starts_with("08") || code.starts_with("57P") => (ErrorKind::Unreachable, None),
        code if ["40", "53", "55", "58"].contains(&&code[..2]) => (ErrorKind::Storage, None),
        _ => (ErrorKind::Storage, permanent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_the_server_has_its_kind() {
        for (code, kind, retry) in [
            ("40001", ErrorKind::Storage, None),
            ("40P01", ErrorKind::Storage, None),
            ("55P03", ErrorKind::Timeout, None),
            ("28P01", ErrorKind::Denied, None),
            ("57P01", ErrorKind::Unreachable, None),
            ("53100", ErrorKind::Storage, None),
            ("53300", ErrorKind::Throttled, None),
            ("42P01", ErrorKind::Replaced, None),
            ("22001", ErrorKind::Storage, Some(RetryAdvice::Permanent)),
        ] {
            assert_eq!(kind_of(&SqlState::from_code(code)), (kind, retry), "{code}");
        }
    }
}
