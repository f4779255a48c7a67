use std::sync::Arc;

use crate::kernel::policy::Outage;
use async_trait::async_trait;
use bytes::Bytes;
use queue_core::envelope::Envelope;
use queue_core::internal::debug_fields;

/// Fetches the data of events that do not have it themselves, but refer to it by the CloudEvents attribute `dataref`:
/// the *claim check* of a producer outside this framework.
///
/// A consumer has none unless it is [set](crate::ListenerBuilder::data_resolver). A reference is what somebody wrote who
/// may put messages on the queue: check that it names a place that such messages may refer to, before anything is
/// fetched, and how large the data is, before it is read.
///
/// ```
/// use std::path::PathBuf;
/// use async_trait::async_trait;
/// use bytes::Bytes;
/// use queue_runtime::envelope::Envelope;
/// use queue_runtime::receive::{DataResolver, ResolveError};
///
/// /// Data in the files of one folder, by their names.
/// struct Folder(PathBuf);
///
/// #[async_trait]
/// impl DataResolver for Folder {
///     async fn resolve(&self, reference: &str, _: &Envelope) -> Result<Bytes, ResolveError> {
///         if !reference.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
///             return Err(ResolveError::unusable("the reference is not the name of a file here"));
///         }
///         let path = self.0.join(reference);
///         match tokio::fs::metadata(&path).await.map_err(ResolveError::unusable)?.len() {
///             0..=10_000_000 => {}
///             size => return Err(ResolveError::unusable(format!("the file has {size} bytes"))),
///         }
///         match tokio::fs::read(&path).await {
///             Ok(data) => Ok(data.into()),
///             // Only what passes: others would wait for it.
///             Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
///                 Err(ResolveError::unavailable(error))
///             }
///             Err(error) => Err(ResolveError::unusable(error)),
///         }
///     }
/// }
/// ```
#[async_trait]
pub trait DataResolver: Send + Sync + 'static {
    /// Returns the data, as the event would have it: JSON, or what the message's type is decoded from.
    ///
    /// The message's lease is renewed meanwhile. A call that takes longer than the handler timeout is dropped, and counts
    /// as [unavailable](ResolveError::unavailable) data. A panic is a failed attempt.
    ///
    /// # Errors
    /// [`ResolveError`] says whether the data may be had later. Its text is logged, and may be written to the poison
    /// queue: it should not contain the reference if that has a secret.
    ///
    /// # Cancel safety
    /// The future is dropped if the lease is lost, or its listener stops.
    async fn resolve(&self, reference: &str, envelope: &Envelope) -> Result<Bytes, ResolveError>;
}

/// Why data that is elsewhere was not fetched.
#[derive(thiserror::Error)]
#[error("failed to fetch the data of a message")]
pub struct ResolveError {
    pub(super) is_outage: bool,
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

queue_core::debug_as_text!(ResolveError);

impl ResolveError {
    /// The data cannot be had now, as when its store is down. The message is not to blame: it waits, and no attempt is
    /// counted, however long that lasts.
    ///
    /// All messages of the consumer that need data wait with it, and each holds its place in flight for up to a visibility
    /// timeout. What concerns one reference alone, such as a file that cannot be read, is
    /// [unusable](Self::unusable).
    #[must_use]
    pub fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            is_outage: true,
            source: source.into(),
        }
    }

    /// The data will never be had by this reference: it is missing, damaged, too large, or at a place that messages of
    /// the queue may not refer to. The message is moved to the poison queue.
    #[must_use]
    pub fn unusable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            is_outage: false,
            source: source.into(),
        }
    }
}

/// The resolver of a consumer.
#[derive(Clone)]
pub(crate) struct Resolver {
    pub(super) resolver: Arc<dyn DataResolver>,
    pub(super) outage: Outage,
}

debug_fields!(Resolver { outage });

impl Resolver {
    pub(crate) fn new(resolver: impl DataResolver) -> Self {
        Self {
            resolver: Arc::new(resolver),
            outage: Outage::default(),
        }
    }
}
