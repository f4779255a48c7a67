//! Payloads in a container of blobs.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_core::http::{
    ClientMethodOptions, ClientOptions, NoFormat, RequestContent, RetryOptions,
    Transport as SdkTransport, Url,
};
use azure_storage_blob::models::{
    BlobClientDeleteOptions, BlobClientDownloadOptions, BlobContainerClientCreateOptions,
    BlobContainerClientListBlobsOptions, BlockBlobClientUploadOptions, HttpRange,
};
use azure_storage_blob::{BlobContainerClient, BlobContainerClientOptions};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use queue_core::backend::Created;
use queue_core::internal::debug_fields;
use queue_core::payload_store::{ObjectPage, PayloadStore};
use queue_core::{Clock, Error, ErrorKind, Operation, Result, RetryAdvice};

use super::account::EMULATOR_VERSION;
use super::call::Caller;
use super::failure::Failure;
use super::reply;

/// The blobs of a page: a reply is read as a whole.
const PAGE: i32 = 1000;

/// How the containers of an account are reached.
pub(super) struct BlobService {
    pub(super) endpoint: Option<Url>,
    /// The scheme of the queues, whose connections are used.
    pub(super) scheme: String,
    pub(super) token: Option<Arc<dyn TokenCredential>>,
    pub(super) transport: SdkTransport,
    pub(super) is_emulator: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) deadline: Duration,
}

/// A container of blobs, as a payload store.
pub(super) struct Blobs {
    container: BlobContainerClient,
    name: String,
    caller: Caller,
}

impl BlobService {
    /// Returns a container, without asking for it.
    pub(super) fn container(&self, name: &str) -> Result<Blobs> {
        let refused = |kind, detail| Error::new(kind, Operation::Open).with_detail(detail);
        if !is_allowed(name) {
            let detail = format!(
                "the container {name:?} has {} bytes; allowed are 3 to 63 lower-case letters, digits and single \
                 hyphens between them",
                name.len()
            );
            return Err(refused(ErrorKind::InvalidInput, detail));
        }
        let Some(mut url) = self.endpoint.clone() else {
            let detail = "it is not known where the account's blobs are: add BlobEndpoint to the connection string";
            return Err(refused(ErrorKind::Unsupported, detail.to_owned()));
        };
        if url.scheme() != self.scheme {
            let detail = format!(
                "the queues are reached by {}, and the blobs by {}: use the same for both",
                self.scheme,
                url.scheme()
            );
            return Err(refused(ErrorKind::Unsupported, detail));
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push(name);
        }
        let mut options = BlobContainerClientOptions {
            client_options: ClientOptions {
                retry: RetryOptions::none(),
                transport: Some(self.transport.clone()),
                ..ClientOptions::default()
            },
            ..BlobContainerClientOptions::default()
        };
        if self.is_emulator {
            options.version = EMULATOR_VERSION.to_owned();
        }
        let container = BlobContainerClient::new(url, self.token.clone(), Some(options));
        let failed = |error| Failure::from_sdk(error).into_error(Operation::Open, self.clock.now());
        Ok(Blobs {
            container: container.map_err(failed)?,
            name: name.to_owned(),
            caller: Caller::new(Arc::clone(&self.clock), self.deadline),
        })
    }
}

debug_fields!(BlobService { endpoint });
debug_fields!(Blobs { name });

impl Blobs {
    async fn put(&self, name: &str, data: &Bytes) -> Result<Created, Failure> {
        let put = |method_options: ClientMethodOptions<'static>| {
            let blob = self.container.blob_client(name).block_blob_client();
            let content: RequestContent<Bytes, NoFormat> = data.clone().into();
            let options = BlockBlobClientUploadOptions {
                method_options,
                // Uploaded in one request, so that nobody sees a part.
                partition_size: Some(NonZero::<u64>::MAX),
                ..BlockBlobClientUploadOptions::default()
            };
            async move { blob.upload(content, Some(options.if_not_exists())).await }
        };
        let put = self
            .caller
            .transfer(Operation::StoreData, None, data.len(), put);
        match put.await {
            Ok(_) => Ok(Created::New),
            Err(failure) if failure.has_code("BlobAlreadyExists") => Ok(Created::Existed),
            Err(failure) => Err(failure),
        }
    }

    async fn create_container(&self) -> Result<(), Failure> {
        let create = |method_options| {
            let options = BlobContainerClientCreateOptions {
                method_options,
                ..BlobContainerClientCreateOptions::default()
            };
            self.container.create(Some(options))
        };
        match self.caller.call(Operation::StoreData, None, create).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.has_code("ContainerAlreadyExists") => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn error(&self, failure: Failure, operation: Operation) -> Error {
        let name = &self.name;
        let gone = ["ContainerNotFound", "ResourceNotFound"];
        let detail = if gone.iter().any(|code| failure.has_code(code)) {
            Some(format!("the container `{name}` does not exist"))
        } else if failure.has_code("ContainerBeingDeleted") {
            Some(format!("the container `{name}` is being deleted"))
        } else {
            None
        };
        let error = failure.into_error(operation, self.caller.clock.now());
        match detail {
            // The container may be created, or restored.
            Some(detail) => Error::new(ErrorKind::Storage, operation)
                .with_retry(RetryAdvice::Temporary)
                .with_detail(detail)
                .with_source(error),
            None => error,
        }
    }
}

#[async_trait]
impl PayloadStore for Blobs {
    async fn prepare(&self) -> Result<()> {
        let created = self.create_container().await;
        created.map_err(|failure| self.error(failure, Operation::StoreData))
    }

    async fn create(&self, name: &str, data: Bytes) -> Result<Created> {
        let created = self.put(name, &data).await;
        created.map_err(|failure| self.error(failure, Operation::StoreData))
    }

    async fn read(&self, name: &str, from: u64, max: usize) -> Result<Option<Bytes>> {
        let max = max.max(1);
        let read = |method_options: ClientMethodOptions<'static>| {
            let blob = self.container.blob_client(name);
            let options = BlobClientDownloadOptions {
                method_options,
                range: Some(HttpRange::new(from, max as u64)),
                partition_size: NonZero::new(max),
                ..BlobClientDownloadOptions::default()
            };
            async move { blob.download(Some(options)).await?.body.collect().await }
        };
        let read = self.caller.transfer(Operation::FetchData, None, max, read);
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(failure) if failure.has_code("BlobNotFound") => Ok(None),
            Err(failure) if failure.has_code("InvalidRange") => Ok(Some(Bytes::new())),
            Err(failure) => Err(self.error(failure, Operation::FetchData)),
        }
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let delete = |method_options: ClientMethodOptions<'static>| {
            let blob = self.container.blob_client(name);
            let options = BlobClientDeleteOptions {
                method_options,
                ..BlobClientDeleteOptions::default()
            };
            async move { blob.delete(Some(options)).await.map(drop) }
        };
        match self.caller.call(Operation::StoreData, None, delete).await {
            Err(failure) if !failure.has_code("BlobNotFound") => {
                Err(self.error(failure, Operation::StoreData))
            }
            _ => Ok(()),
        }
    }

    async fn list(&self, prefix: &str, from: Option<&str>) -> Result<ObjectPage> {
        let page = self.caller.call(Operation::ListData, None, |options| {
            let mut listing = BlobContainerClientListBlobsOptions::default();
            listing.method_options.context = options.context;
            listing.marker = from.map(str::to_owned);
            listing.maxresults = Some(PAGE);
            listing.prefix = (!prefix.is_empty()).then(|| prefix.to_owned());
            let pager = self.container.list_blobs(Some(listing));
            async move { pager?.into_pages().try_next().await }
        });
        let read = match page.await {
            Ok(Some(page)) => reply::blobs(page.body()),
            Ok(None) => Err(Failure::Malformed("it has no page")),
            Err(failure) => Err(failure),
        };
        read.map_err(|failure| self.error(failure, Operation::ListData))
    }
}

/// Whether a container can have this name.
fn is_allowed(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut words = name.split('-');
    (3..=63).contains(&name.len())
        && words.all(|word| !word.is_empty() && word.bytes().all(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_containers_are_checked() {
        for allowed in ["abc", "payloads-2", "0-0", &"x".repeat(63)] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "ab",
            "Payloads",
            "a--b",
            "-ab",
            "ab-",
            "a_b",
            "a/b",
            &"x".repeat(64),
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }
}
