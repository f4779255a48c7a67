//! A container beside the queues, as an object store of results.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use queue_core::backend::Created;
use queue_core::payload_store::{PayloadStore, StoredObject};
use tokio::sync::OnceCell;

/// What one request reads at most.
const PART: usize = 1024 * 1024;

/// Makes what [`ObjectResults`](super::ObjectResults) asks for of the few requests of a payload store.
#[derive(Debug, Clone)]
pub(super) struct Container {
    objects: Arc<dyn PayloadStore>,
    /// Whether this process has created the container, or found it. If it is gone later, every request of this process
    /// fails.
    prepared: Arc<OnceCell<()>>,
}

impl Container {
    pub(super) fn new(objects: Arc<dyn PayloadStore>) -> Self {
        let prepared = Arc::default();
        Self { objects, prepared }
    }

    async fn objects(&self) -> Result<&dyn PayloadStore> {
        let prepared = self.prepared.get_or_try_init(|| self.objects.prepare());
        prepared.await.map_err(failed)?;
        Ok(&*self.objects)
    }

    async fn read_all(&self, name: &Path) -> Result<Bytes> {
        let (objects, mut data) = (self.objects().await?, BytesMut::new());
        loop {
            let part = objects.read(name.as_ref(), data.len() as u64, PART).await;
            let part = part.map_err(failed)?.ok_or_else(|| missing(name))?;
            data.extend_from_slice(&part);
            if part.len() < PART {
                return Ok(data.freeze());
            }
        }
    }

    async fn head(&self, name: &Path) -> Result<ObjectMeta> {
        let mut parts: Vec<_> = name.parts().collect();
        parts.pop();
        let folder: Path = parts.into_iter().collect();
        let found = self.list(Some(&folder)).try_filter(|object| {
            let is_found = object.location == *name;
            async move { is_found }
        });
        let found = std::pin::pin!(found).try_next().await?;
        found.ok_or_else(|| missing(name))
    }
}

#[async_trait]
impl ObjectStore for Container {
    async fn put_opts(
        &self,
        name: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let objects = self.objects().await?;
        if let PutMode::Overwrite = options.mode {
            objects.delete(name.as_ref()).await.map_err(failed)?;
        }
        let put = PutResult {
            e_tag: None,
            version: None,
            extensions: object_store::Extensions::new(),
        };
        match objects.create(name.as_ref(), payload.into()).await {
            // Another process has written it since, which is as new.
            Ok(Created::Existed) if options.mode == PutMode::Overwrite => Ok(put),
            Ok(Created::Existed) => Err(Error::AlreadyExists {
                path: name.to_string(),
                source: "there is an object of this name".into(),
            }),
            Ok(_) => Ok(put),
            Err(error) => Err(failed(error)),
        }
    }

    async fn get_opts(&self, name: &Path, options: GetOptions) -> Result<GetResult> {
        let (meta, data) = if options.head {
            (self.head(name).await?, Bytes::new())
        } else {
            let data = self.read_all(name).await?;
            // Nobody asks for the time of an object that is read.
            (meta(name, data.len() as u64, SystemTime::UNIX_EPOCH), data)
        };
        Ok(GetResult {
            range: 0..data.len() as u64,
            payload: GetResultPayload::Stream(stream::once(async { Ok(data) }).boxed()),
            meta,
            attributes: object_store::Attributes::new(),
            extensions: object_store::Extensions::new(),
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let container = self.clone();
        let prefix = prefix.map_or_else(String::new, |prefix| match prefix.as_ref() {
            "" => String::new(),
            path => format!("{path}/"),
        });
        let pages = stream::try_unfold(Some(None::<String>), move |from| {
            let (container, prefix) = (container.clone(), prefix.clone());
            async move {
                let Some(from) = from else {
                    return Ok::<_, Error>(None);
                };
                let objects = container.objects().await?;
                let page = objects
                    .list(&prefix, from.as_deref())
                    .await
                    .map_err(failed)?;
                let found: Vec<Result<ObjectMeta>> = page
                    .objects
                    .iter()
                    .map(|object| Ok(listed(object)))
                    .collect();
                Ok(Some((stream::iter(found), page.next.map(Some))))
            }
        });
        pages.try_flatten().boxed()
    }

    fn delete_stream(
        &self,
        names: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let container = self.clone();
        let deleted = names.and_then(move |name| {
            let container = container.clone();
            async move {
                let objects = container.objects().await?;
                let deleted = objects.delete(name.as_ref()).await;
                deleted.map_err(failed)?;
                Ok(name)
            }
        });
        deleted.boxed()
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_needed("put_multipart"))
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(not_needed("list_with_delimiter"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_needed("copy"))
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a container beside the queues")
    }
}

fn listed(object: &StoredObject) -> ObjectMeta {
    let name = Path::from(&*object.name);
    meta(&name, object.size, SystemTime::from(object.created))
}

fn meta(name: &Path, size: u64, modified: SystemTime) -> ObjectMeta {
    ObjectMeta {
        location: name.clone(),
        last_modified: modified.into(),
        size,
        e_tag: None,
        version: None,
    }
}

fn missing(name: &Path) -> Error {
    Error::NotFound {
        path: name.to_string(),
        source: "the container has no object of this name".into(),
    }
}

/// Wraps an error, which [`objects::failed`](crate::extensions::objects::failed) takes out again.
fn failed(error: queue_core::Error) -> Error {
    Error::Generic {
        store: "container",
        source: error.into(),
    }
}

fn not_needed(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "a container of results".to_owned(),
    }
}
