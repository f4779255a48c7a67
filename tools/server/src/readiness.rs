//! Whether the queues answer, for whoever sends requests here or to another instance.

use http::request::Parts;
use http::{Method, StatusCode};
use queue_azure_wire::code::Code;
use queue_core::{ErrorKind, QueueName};

use crate::account::Account;
use crate::answer::{Answer, Refusal};

/// No account has such a name.
const PATH: &str = "/-/ready";

/// A queue that need not exist: the storage answers if it says so.
const QUEUE: QueueName = QueueName::from_static("readiness");

pub(crate) fn is_asked(parts: &Parts) -> bool {
    let asks = parts.method == Method::GET || parts.method == Method::HEAD;
    asks && parts.uri.path() == PATH
}

/// Anybody may ask, and learns nothing else.
pub(crate) async fn answer(accounts: &[Account]) -> Result<Answer, Refusal> {
    for account in accounts {
        match account.queues.metadata(&QUEUE).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::QueueNotFound => {}
            Err(error) => {
                tracing::warn!(%error, account = account.name, "the queues do not answer");
                return Err(Code::ServerBusy.into());
            }
        }
    }
    Ok(Answer::empty(StatusCode::OK))
}
