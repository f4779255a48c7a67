use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::azure::{AzureAuthorizer, MicrosoftAzure, MicrosoftAzureBuilder, split_sas};
use object_store::client::{
    HttpClient, HttpConnector as _, HttpRequest, HttpRequestBody, ReqwestConnector,
};
use object_store::{ClientOptions, ObjectStore as _, ObjectStoreExt as _, RetryConfig};
use queue_runtime::azure::AzureAnswers;
use queue_runtime::error::RetryAdvice;
use queue_runtime::policy::StorageRetry;

use super::account::{Account, Credential, Problem};
use super::entra;
use crate::storage::blob::Container;
use crate::storage::library_store::{MAX_FILES, MAX_LIBRARY, is_picture};
use crate::storage::object_error::describe;
use crate::storage::store::Store;
use pictures::Size;

/// The error for an account whose blobs cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AzureError {
    /// The URL or connection string is invalid.
    #[error("open the blobs on Azure: {0}")]
    Account(Problem),
    /// No source of credentials returned a token.
    #[error("open the blobs on Azure: there is no token of Entra ID: {0}")]
    NoToken(String),
    /// A container does not exist and could not be created.
    #[error("create the container `{container}` in the account `{account}`: {reason}")]
    Container {
        /// The container's name.
        container: &'static str,
        /// The account's name.
        account: String,
        /// The cause.
        reason: String,
    },
    /// The pictures in a container could not be read.
    #[error(
        "read the pictures in the container `{container}` of the account `{account}`: {reason}"
    )]
    Pictures {
        /// The container's name.
        container: String,
        /// The account's name.
        account: String,
        /// The cause.
        reason: String,
    },
    /// The client could not be created.
    #[error("create a client of the account `{account}`: {reason}")]
    Client {
        /// The account's name.
        account: String,
        /// The cause.
        reason: String,
    },
}

/// The timeout of a request, enough for the largest picture over a slow connection.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The maximum number of concurrent downloads.
const CONCURRENCY: usize = 8;

/// The idle timeout of connections to an emulator: less than the 5 s after which Azurite closes them,
/// perhaps just as one is used.
const EMULATOR_IDLE: Duration = Duration::from_secs(3);

impl Store {
    /// Opens the containers of a storage account, and creates those that are missing.
    ///
    /// # Errors
    /// [`AzureError`] for an unusable account, credential or container.
    pub async fn azure(account: Result<Account, Problem>) -> Result<Self, AzureError> {
        let account = account.map_err(AzureError::Account)?;
        let failed = |reason| AzureError::Client {
            account: account.name.clone(),
            reason,
        };
        let options = options(&account);
        let builder = builder(&account, &options).await?;
        let build = |container: Container| {
            let built = builder.clone().with_container_name(container.name());
            built.build().map_err(|error| failed(describe(&error)))
        };
        let stores = (Container::ALL.into_iter().map(build)).collect::<Result<Vec<_>, _>>()?;
        let client = AzureAnswers::of(ReqwestConnector::default())
            .connect(&options)
            .map_err(|error| failed(describe(&error)))?;
        let made = stores.iter().zip(Container::ALL).map(|(store, container)| {
            let (client, account) = (&client, &account);
            async move {
                create_container(client, account, store, container)
                    .await
                    .map_err(|reason| AzureError::Container {
                        container: container.name(),
                        account: account.name.clone(),
                        reason,
                    })
            }
        });
        try_join_all(made).await?;
        let mut stores = stores.into_iter();
        Ok(Self::of(Container::ALL.map(|_| {
            Arc::new(stores.next().expect("one for each container")) as _
        })))
    }
}

/// Reads the pictures in a container, with their names.
///
/// # Errors
/// [`AzureError`] for an unusable account or credential, and if the container cannot be read, has no
/// pictures or is too large for a tile library.
pub async fn container_pictures(
    account: Result<Account, Problem>,
    container: &str,
) -> Result<Vec<(String, Vec<u8>)>, AzureError> {
    let account = account.map_err(AzureError::Account)?;
    let failed = |reason: String| AzureError::Pictures {
        container: container.to_owned(),
        account: account.name.clone(),
        reason,
    };
    let builder = builder(&account, &options(&account)).await?;
    let store = builder.with_container_name(container).build();
    let store = store.map_err(|error| failed(describe(&error)))?;
    let listed: Vec<_> =
        (store.list(None).try_collect().await).map_err(|error| failed(describe(&error)))?;
    let pictures: Vec<_> = (listed.into_iter())
        .filter(|meta| is_picture(meta.location.as_ref()))
        .collect();
    let bytes: u64 = pictures.iter().map(|meta| meta.size).sum();
    if pictures.is_empty() {
        let looked_for =
            "it has no pictures; blobs that end in .png, .jpg or .jpeg were looked for";
        return Err(failed(looked_for.to_owned()));
    }
    if pictures.len() > MAX_FILES || bytes > MAX_LIBRARY {
        let count = pictures.len();
        return Err(failed(format!(
            "it has {count} pictures of {} together; at most {MAX_FILES} of {} are allowed",
            Size(bytes),
            Size(MAX_LIBRARY)
        )));
    }
    let store = &store;
    let reads = pictures.into_iter().map(|meta| async move {
        let read = store.get(&meta.location).await?.bytes().await?;
        Ok::<_, object_store::Error>((meta.location.to_string(), read.to_vec()))
    });
    let read = stream::iter(reads)
        .buffered(CONCURRENCY)
        .try_collect()
        .await;
    read.map_err(|error| failed(describe(&error)))
}

fn options(account: &Account) -> ClientOptions {
    let options = ClientOptions::new()
        .with_allow_http(account.endpoint.starts_with("http:"))
        .with_timeout(TIMEOUT);
    if account.is_emulator {
        options.with_pool_idle_timeout(EMULATOR_IDLE)
    } else {
        options
    }
}

async fn builder(
    account: &Account,
    options: &ClientOptions,
) -> Result<MicrosoftAzureBuilder, AzureError> {
    // Handlers are retried anyway, and a client should soon report an unreachable account.
    let retry = RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(30),
        ..RetryConfig::default()
    };
    let builder = MicrosoftAzureBuilder::new()
        .with_account(&account.name)
        .with_endpoint(account.endpoint.clone())
        .with_client_options(options.clone())
        .with_http_connector(AzureAnswers::of(ReqwestConnector::default()))
        .with_retry(retry);
    match &account.credential {
        Credential::Key(key) => Ok(builder.with_access_key(key)),
        Credential::Signature(query) => match split_sas(query) {
            Ok(pairs) => Ok(builder.with_sas_authorization(pairs)),
            Err(error) => Err(AzureError::Client {
                account: account.name.clone(),
                reason: describe(&error),
            }),
        },
        Credential::Entra => {
            let credentials = entra::credentials(&builder).await;
            let credentials = credentials.map_err(AzureError::NoToken)?;
            Ok(builder.with_credentials(credentials))
        }
    }
}

/// Creates a container unless it exists, which `object_store` cannot. Tries again as [`StorageRetry`] says.
async fn create_container(
    client: &HttpClient,
    account: &Account,
    store: &MicrosoftAzure,
    container: Container,
) -> Result<(), String> {
    let policy = StorageRetry::default();
    let mut failures = 0;
    loop {
        let (reason, retry) = match try_to_create(client, account, store, container).await {
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        failures += 1;
        let Some(pause) = policy.pause(failures, retry, 1.0) else {
            return Err(reason);
        };
        let container = container.name();
        tracing::warn!(
            container,
            reason,
            ?pause,
            "failed to create a container; trying again"
        );
        tokio::time::sleep(pause).await;
    }
}

/// Looks first, since a credential that may not create containers may use those that exist.
async fn try_to_create(
    client: &HttpClient,
    account: &Account,
    store: &MicrosoftAzure,
    container: Container,
) -> Result<(), (String, RetryAdvice)> {
    let unknown = |reason| (reason, RetryAdvice::Temporary);
    let found = send(client, account, store, container, "HEAD").await;
    if found.map_err(unknown)?.0 == 200 {
        return Ok(());
    }
    let made = send(client, account, store, container, "PUT").await;
    let (status, code) = made.map_err(unknown)?;
    let retry = match (status, code.as_str()) {
        (201, _) | (409, "ContainerAlreadyExists") => return Ok(()),
        (429 | 503, _) => RetryAdvice::Throttled(None),
        (408 | 500.., _) | (409, "ContainerBeingDeleted") => RetryAdvice::Temporary,
        _ => RetryAdvice::Permanent,
    };
    Err((format!("status {status} {code}"), retry))
}

/// Sends a request about a container. Returns the status and the error code of the response.
async fn send(
    client: &HttpClient,
    account: &Account,
    store: &MicrosoftAzure,
    container: Container,
    method: &str,
) -> Result<(u16, String), String> {
    let url = format!(
        "{}/{}?restype=container",
        account.endpoint,
        container.name()
    );
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.method_mut() = method.parse().expect("it is a method");
    *request.uri_mut() = url
        .parse()
        .map_err(|error| format!("its URL is invalid: {error}"))?;
    let zero = "0".parse().expect("it is a header's value");
    request.headers_mut().insert("content-length", zero);
    let credential = store.credentials().get_credential().await;
    let credential = credential.map_err(|error| describe(&error))?;
    AzureAuthorizer::new(&credential, &account.name)
        .try_authorize(&mut request)
        .map_err(|error| describe(&error))?;
    let response = client.execute(request).await;
    let response = response.map_err(|error| describe(&error))?;
    let code = response.headers().get("x-ms-error-code");
    let code = code.and_then(|code| code.to_str().ok()).unwrap_or_default();
    Ok((response.status().as_u16(), code.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use queue_tests::http::Message;

    use super::*;

    /// Answers one request about each container after the other, by its method and the number of its tries before.
    fn serve(answer: impl Fn(&str, usize) -> Option<&'static str> + Send + 'static) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        std::thread::spawn(move || {
            let mut tries = std::collections::HashMap::new();
            for stream in listener.incoming() {
                let mut stream = stream.expect("accepted");
                let Ok(Some(request)) = Message::read(&mut stream) else {
                    continue;
                };
                let before: &mut usize = tries.entry(request.first.clone()).or_default();
                let method = request.first.split(' ').next().unwrap_or_default();
                // `None` closes the connection without an answer.
                if let Some(status) = answer(method, *before) {
                    let answer = format!(
                        "HTTP/1.1 {status}\r\nx-ms-request-id: 1\r\ncontent-length: 0\r\n\
                         connection: close\r\n\r\n"
                    );
                    std::io::Write::write_all(&mut stream, answer.as_bytes()).expect("sent");
                }
                *before += 1;
            }
        });
        port
    }

    async fn open(port: u16) -> Result<Store, AzureError> {
        let url = format!("http://127.0.0.1:{port}/acct?sv=1&sig=x");
        Store::azure(Account::parse(&url)).await
    }

    #[tokio::test]
    async fn a_container_is_created_although_requests_fail_for_a_while() {
        let port = serve(|method, before| match (method, before) {
            ("HEAD", _) => Some("404 Not Found\r\nx-ms-error-code: ContainerNotFound"),
            (_, 0) => Some("503 Server Busy"),
            (_, 1) => None,
            _ => Some("201 Created"),
        });
        open(port).await.expect("created at the third try");
    }

    #[tokio::test]
    async fn what_is_denied_is_not_tried_again() {
        let port = serve(|_, before| match before {
            0 => Some("403 Forbidden\r\nx-ms-error-code: AuthorizationFailure"),
            _ => Some("201 Created"),
        });
        let refused = open(port).await.expect_err("denied");
        assert!(refused.to_string().contains("status 403"), "{refused}");
    }
}
