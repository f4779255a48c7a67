use queue_core::InvalidId;

use super::connect::Refused;
use crate::kernel::settings::InvalidSetting;

/// An error of connecting to queues.
///
/// ```
/// use queue_runtime::{ConnectError, QueueService, RetryAdvice};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let error = QueueService::connect("amqp://guest:secret@localhost").await.unwrap_err();
/// match &error {
///     ConnectError::Url { url, problem, .. } => {
///         assert_eq!((url.as_str(), problem.as_str()), ("amqp:…", "its scheme is unknown"));
///     }
///     ConnectError::Storage(error) if error.retry() != RetryAdvice::Permanent => {
///         eprintln!("{error}; will retry");
///     }
///     other => eprintln!("{other}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// `QUEUE_URL` is not set, or is not valid Unicode.
    #[error(
        "the environment variable `QUEUE_URL` {}; set it to {}",
        unread(problem),
        allowed()
    )]
    Environment {
        /// What is wrong with it.
        problem: std::env::VarError,
    },
    /// This build does not support the URL.
    #[error(
        "failed to connect to the queue URL {url:?}: {problem}; use {}",
        allowed()
    )]
    Url {
        /// The URL's scheme; the rest may hold a secret.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The URL needs a feature that this build is without.
    #[error(
        "failed to connect to the queue URL {url:?}: this program was built without the feature `{feature}` of `queue-runtime`"
    )]
    MissingFeature {
        /// The URL's scheme; the rest may hold a secret.
        url: String,
        /// The feature to add in `Cargo.toml`.
        feature: &'static str,
    },
    /// The client id is invalid.
    #[error("the client id is invalid")]
    Client {
        /// The cause.
        source: InvalidId,
    },
    /// A setting is outside its allowed range.
    #[error("failed to connect to queues: {0}")]
    Setting(InvalidSetting),
    /// The storage could not be opened.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// The background thread could not be started, or
    /// [`on_current_runtime`](crate::ServiceBuilder::on_current_runtime) was called outside a Tokio
    /// runtime.
    #[error("failed to start the background tasks")]
    Background {
        /// The cause.
        source: std::io::Error,
    },
}

queue_core::debug_as_text!(ConnectError);

fn unread(error: &std::env::VarError) -> &'static str {
    match error {
        std::env::VarError::NotPresent => "is not set",
        std::env::VarError::NotUnicode(_) => "is not valid Unicode",
    }
}

impl From<Refused> for ConnectError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Url { url, problem } => Self::Url { url, problem },
            Refused::MissingFeature { url, feature } => Self::MissingFeature { url, feature },
            Refused::Storage(error) => Self::Storage(error),
        }
    }
}

/// Lists the URLs that this build supports.
fn allowed() -> String {
    let mut allowed = vec!["`memory:`", "`memory:NAME`"];
    if cfg!(feature = "sqlite") {
        allowed.extend([
            "`sqlite:PATH`",
            "`sqlite:PATH?adopt`",
            "`sqlite:PATH?synchronous=normal`",
        ]);
    }
    if cfg!(feature = "azure") {
        allowed.extend([
            "`azure://ACCOUNT`",
            "`https://…?sig=…`",
            "an Azure connection string",
        ]);
    }
    allowed.push("`sharded:NUMBER|URL|URL…`");
    let last = allowed.pop().unwrap_or_default();
    format!("{} or {last}", allowed.join(", "))
}
