use std::sync::Arc;
use std::time::Duration;

use azure_core::http::{ClientOptions, RetryOptions, Transport as SdkTransport};
use azure_storage_queue::{QueueServiceClient, QueueServiceClientOptions};
use queue_core::{Clock, Error, ErrorKind, Operation, Result};

use super::account::{Account, Credential, EndpointKind};
use super::backend::{AzureBackend, capabilities};
use super::call::Caller;
use super::clients::Clients;
use super::entra::Entra;
use super::failure::Failure;
use super::requests::Requests;
use super::secret::Secret;
use super::transport::Transport;

/// How an [`AzureBackend`] is opened.
#[derive(Debug, Clone)]
#[must_use]
pub struct AzureBuilder {
    url: Secret,
    clock: Arc<dyn Clock>,
    deadline: Duration,
}

/// A version that every emulator of the last years knows as it is started, and that has all that is
/// used here. They refuse the SDK's own.
const EMULATOR_VERSION: &str = "2021-12-02";

/// How long the first token may take: a developer's tool starts a process for it.
const FIRST_TOKEN: Duration = Duration::from_secs(60);

impl AzureBackend {
    /// How an account is opened. `url` is a connection string, a SAS URL, or `azure://ACCOUNT` for
    /// Entra ID. `clock` dates the signatures and ends operations that take too long.
    pub fn builder(url: &str, clock: Arc<dyn Clock>) -> AzureBuilder {
        AzureBuilder {
            url: Secret::new(url),
            clock,
            deadline: Duration::from_secs(10),
        }
    }
}

impl AzureBuilder {
    /// How long one operation may take, its reply's last byte included; 10 s unless chosen. Half of
    /// it is for connecting, after which nothing was done for certain. Keep it below the leases.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Reads the URL or connection string and, for Entra ID, gets a first token. Nothing else is
    /// asked of the service.
    ///
    /// Operations need a tokio runtime with timers and I/O. Each runtime has connections of its own,
    /// so that one whose workers are all busy holds up no other.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] says what is wrong with the URL or connection string, without
    /// repeating it; [`ErrorKind::Denied`] names each credential of Entra ID that gave no token, and
    /// why; [`ErrorKind::Unsupported`] says that the system has no certificates to trust.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn open(self) -> Result<AzureBackend> {
        let Self {
            url,
            clock,
            deadline,
        } = self;
        let account = Account::parse(url.reveal()).map_err(|problem| {
            Error::new(ErrorKind::InvalidInput, Operation::Open).with_detail(problem.to_string())
        })?;
        let Account {
            endpoint,
            kind,
            credential,
        } = account;
        let entra = match credential {
            Credential::Entra => {
                let entra = Entra::new(Arc::clone(&clock), FIRST_TOKEN);
                entra
                    .check()
                    .await
                    .map_err(|failure| open_failed(failure, &*clock))?;
                Some(Arc::new(entra) as _)
            }
            _ => None,
        };
        let clients = Clients::new(&endpoint, kind, deadline / 2).map_err(|error| {
            Error::new(ErrorKind::Unsupported, Operation::Open)
                .with_detail(format!("TLS cannot be set up: {error}"))
        })?;
        let transport = Transport::new(credential, clients, Arc::clone(&clock));
        let mut options = QueueServiceClientOptions {
            client_options: ClientOptions {
                retry: RetryOptions::none(),
                transport: Some(SdkTransport::with_policy(Arc::new(transport))),
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
            requests: Requests {
                service,
                caller: Caller { clock, deadline },
            },
            endpoint,
            capabilities: capabilities(kind),
        })
    }
}

fn open_failed(failure: Failure, clock: &dyn Clock) -> Error {
    failure.into_error(Operation::Open, clock.now())
}
