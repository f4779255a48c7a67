use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::azure::{AzureAuthorizer, MicrosoftAzure, MicrosoftAzureBuilder, split_sas};
use object_store::client::{
    HttpClient, HttpConnector as _, HttpRequest, HttpRequestBody, ReqwestConnector,
};
use object_store::{ClientOptions, ObjectStore as _, ObjectStoreExt as _, RetryConfig};

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
        let client = ReqwestConnector::default()
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

/// Creates a container unless it exists, which `object_store` cannot. It looks first, since a credential
/// that may not create containers may use those that exist.
async fn create_container(
    client: &HttpClient,
    account: &Account,
    store: &MicrosoftAzure,
    container: Container,
) -> Result<(), String> {
    let found = send(client, account, store, container, "HEAD").await?;
    if found.0 == 200 {
        return Ok(());
    }
    let (status, code) = send(client, account, store, container, "PUT").await?;
    match (status, code.as_str()) {
        (201, _) | (409, "ContainerAlreadyExists") => Ok(()),
        _ => Err(format!("status {status} {code}")),
    }
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
    *request.uri_mut() = url.parse().map_err(|_| "its URL is invalid")?;
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
