use queue_core::InvalidId;

/// The error of connecting a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// `QUEUE_URL` is not set, or not text.
    #[error("read the environment variable `QUEUE_URL`; set it to {}", allowed())]
    Environment {
        /// What is wrong with it.
        source: std::env::VarError,
    },
    /// The URL is not one that this build supports.
    #[error("connect to queue URL {url:?}: {problem}; allowed are {}", allowed())]
    Url {
        /// The URL's scheme; the rest may hold a secret.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The client id is not allowed.
    #[error("use the client id")]
    Client {
        /// What is wrong with it.
        source: InvalidId,
    },
    /// The storage engine could not be opened.
    #[error(transparent)]
    Storage(queue_core::Error),
    /// The service's background thread could not be started, or there is no current Tokio runtime to use
    /// in its place.
    #[error("start the background tasks")]
    Background {
        /// The cause.
        source: std::io::Error,
    },
}

/// The URLs that this build supports.
fn allowed() -> String {
    let mut allowed = vec!["`memory:`", "`memory:NAME`"];
    if cfg!(feature = "sqlite") {
        allowed.extend(["`sqlite:PATH`", "`sqlite:PATH?synchronous=normal`"]);
    }
    if cfg!(feature = "azure") {
        allowed.extend([
            "`azure://ACCOUNT`",
            "`https://…?sig=…`",
            "an Azure connection string",
        ]);
    }
    let last = allowed.pop().unwrap_or_default();
    let without = match (cfg!(feature = "sqlite"), cfg!(feature = "azure")) {
        (true, true) => "",
        (true, false) => " (this build is without the feature `azure`)",
        (false, true) => " (this build is without the feature `sqlite`)",
        (false, false) => " (this build is without the features `sqlite` and `azure`)",
    };
    format!("{} and {last}{without}", allowed.join(", "))
}
