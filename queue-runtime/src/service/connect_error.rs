use queue_core::{Error, InvalidId};

use crate::kernel::settings::InvalidSetting;

/// An error of connecting to queues.
///
/// ```
/// use queue_runtime::service::ConnectErrorKind;
/// use queue_runtime::QueueService;
/// use queue_runtime::error::RetryAdvice;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let error = QueueService::connect("amqp://guest:secret@localhost").await.unwrap_err();
/// match &error.kind {
///     ConnectErrorKind::Url { url, problem, .. } => {
///         assert_eq!((url.as_str(), problem.as_str()), ("amqp:…", "its scheme is unknown"));
///     }
///     ConnectErrorKind::Storage(error) if error.retry() != RetryAdvice::Permanent => {
///         eprintln!("{error}; will retry");
///     }
///     _ => eprintln!("{error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[non_exhaustive]
pub struct ConnectError {
    /// What is wrong.
    pub kind: ConnectErrorKind,
}

/// Why a service could not connect to queues. The kind of a [`ConnectError`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// `QUEUE_URL` is not set, or is not valid Unicode.
    #[error(
        "the environment variable `QUEUE_URL` {}; set it to {}",
        unread(.0),
        allowed()
    )]
    Environment(std::env::VarError),
    /// This build does not support the URL.
    #[error("{problem}; use {}", allowed())]
    Url {
        /// The URL's scheme; the rest may hold a secret.
        url: String,
        /// What is wrong with the URL.
        problem: String,
    },
    /// The URL needs a feature that this build is without.
    #[error("this program was built without the feature `{feature}` of `storage-queues`")]
    MissingFeature {
        /// The URL's scheme; the rest may hold a secret.
        url: String,
        /// The feature to add in `Cargo.toml`.
        feature: &'static str,
    },
    /// The client id is invalid.
    #[error(transparent)]
    Client(#[from] InvalidId),
    /// A setting is outside its allowed range.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The storage could not be opened.
    #[error(transparent)]
    Storage(#[from] Error),
    /// The background thread could not be started, or
    /// [`on_current_runtime`](crate::service::ServiceBuilder::on_current_runtime) was called outside a Tokio
    /// runtime.
    #[error("the background tasks could not be started")]
    Background(#[source] std::io::Error),
}

queue_core::debug_as_text!(ConnectErrorKind);

queue_core::error_around!(kind in ConnectError; |error, f| match &error.kind {
    ConnectErrorKind::Storage(error) => error.fmt(f),
    kind @ (ConnectErrorKind::Url { url, .. } | ConnectErrorKind::MissingFeature { url, .. }) => {
        write!(f, "failed to connect to the queue URL {url:?}: {kind}")
    }
    kind => write!(f, "failed to connect to queues: {kind}"),
});

fn unread(error: &std::env::VarError) -> &'static str {
    match error {
        std::env::VarError::NotPresent => "is not set",
        std::env::VarError::NotUnicode(_) => "is not valid Unicode",
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
    if cfg!(feature = "postgres") {
        allowed.push("`postgres://USER@HOST/DATABASE`");
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
