use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::{Secret, TokenCredential};
use azure_core::http::{ClientOptions, RetryOptions, Transport as SdkTransport};
use azure_storage_queue::{QueueServiceClient, QueueServiceClientOptions};
use queue_core::notify::LocalNotifier;
use queue_core::{Clock, Error, ErrorKind, Operation, Result};

use super::account::{Account, Credential, EMULATOR_VERSION, EndpointKind};
use super::backend::{AzureBackend, capabilities};
use super::blobs::BlobService;
use super::call::Caller;
use super::clients::Clients;
use super::entra::Entra;
use super::failure::Failure;
use super::transport::Transport;

/// Configures and opens an [`AzureBackend`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use queue_azure::AzureBackend;
/// use queue_clock::SystemClock;
/// use queue_core::ErrorKind;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let clock = Arc::new(SystemClock::new());
/// let builder = AzureBackend::builder("AccountName=shop;AccountKey=s3cret!", clock);
/// let error = builder.deadline(Duration::from_secs(5)).open().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidInput);
/// assert!(error.to_string().contains("AccountKey is not Base64"));
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct AzureBuilder {
    url: Secret,
    clock: Arc<dyn Clock>,
    deadline: Duration,
}

/// The timeout of the first token: developer tools start a process for it.
const FIRST_TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

impl AzureBackend {
    /// Returns a builder for a backend on an account. `url` is a connection string, a SAS URL, or
    /// `azure://ACCOUNT` for Entra ID. `clock` provides the time of signatures and timeouts.
    pub fn builder(url: &str, clock: Arc<dyn Clock>) -> AzureBuilder {
        AzureBuilder {
            url: Secret::new(url.to_owned()),
            clock,
            deadline: Duration::from_secs(10),
        }
    }
}

impl AzureBuilder {
    /// Sets the timeout of one operation, up to the last byte of its reply; 10 s by default. Connecting may take half
    /// of the timeout; an operation that fails to connect has certainly had no effect. Keep the deadline below the
    /// visibility timeout.
    ///
    /// After a timeout, the same operation gets twice as long the next time, up to eight times the deadline, until an
    /// answer comes within the deadline again. Receives, renewals and settlements also end before the lease does.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Parses the URL or connection string and, for Entra ID, gets a first token. Sends no request to the
    /// storage service.
    ///
    /// Operations require a Tokio runtime with timers and I/O enabled. Each runtime has its own
    /// connections, so a runtime whose workers are all blocked does not delay another.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the URL or connection string is invalid (the error does not repeat
    /// it); [`ErrorKind::Denied`] if no credential of Entra ID gives a token, with the reason of each;
    /// [`ErrorKind::Unsupported`] if the system's trusted certificates cannot be loaded.
    ///
    /// # Cancel safety
    /// Dropping the future has no lasting effect.
    pub async fn open(self) -> Result<AzureBackend> {
        let Self {
            url,
            clock,
            deadline,
        } = self;
        let account = Account::parse(url.secret()).map_err(|problem| {
            Error::new(ErrorKind::InvalidInput, Operation::Open).with_detail(problem)
        })?;
        let Account {
            endpoint,
            kind,
            credential,
            blobs,
        } = account;
        let entra = match credential {
            Credential::Entra => {
                let entra = Entra::new(Arc::clone(&clock), FIRST_TOKEN_TIMEOUT);
                entra
                    .check()
                    .await
                    .map_err(|failure| open_failed(failure, &*clock))?;
                Some(Arc::new(entra) as Arc<dyn TokenCredential>)
            }
            _ => None,
        };
        let clients = Clients::new(&endpoint, kind, deadline / 2).map_err(|error| {
            Error::new(ErrorKind::Unsupported, Operation::Open)
                .with_detail(format!("TLS cannot be configured: {error}"))
        })?;
        let credential = Arc::new(credential);
        let transport = Transport::new(credential, clients, Arc::clone(&clock));
        let transport = SdkTransport::with_policy(Arc::new(transport));
        let blobs = BlobService {
            endpoint: blobs,
            scheme: endpoint.scheme().to_owned(),
            token: entra.clone(),
            transport: transport.clone(),
            is_emulator: kind == EndpointKind::Emulator,
            clock: Arc::clone(&clock),
            deadline,
        };
        let mut options = QueueServiceClientOptions {
            client_options: ClientOptions {
                retry: RetryOptions::none(),
                transport: Some(transport),
                ..ClientOptions::default()
            },
            ..QueueServiceClientOptions::default()
        };
        if kind == EndpointKind::Emulator {
            options.version = EMULATOR_VERSION.to_owned();
        }
        let service = QueueServiceClient::new(endpoint.clone(), entra, Some(options))
            .map_err(|error| open_failed(Failure::from_sdk(error), &*clock))?;
        Ok(AzureBackend {
            service,
            caller: Caller::new(clock, deadline),
            blobs,
            notifier: LocalNotifier::of_storage(endpoint.as_str()),
            endpoint,
            capabilities: capabilities(),
        })
    }
}

fn open_failed(failure: Failure, clock: &dyn Clock) -> Error {
    failure.into_error(Operation::Open, clock.now())
}
