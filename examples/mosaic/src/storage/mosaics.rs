//! Mosaics, which are kept in parts: who writes or reads a mosaic holds one part of it in memory, however large it is.
//!
//! Each attempt to join a mosaic writes the parts `imageoutput/REQUEST/ATTEMPT.0000`, `….0001` and so on. The response names
//! an attempt that has written all parts, and the size at which they end.

use std::io::{self, BufWriter, Write};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::runtime::Handle;

use crate::storage::blob::BlobName;
use crate::storage::store::{Store, StoreError};

/// The size of a part in bytes, at most.
const PART: usize = 8 << 20;

/// Writes a mosaic on a thread that may block: each write is a part.
#[derive(Debug)]
pub(crate) struct MosaicWriter {
    store: Store,
    name: BlobName,
    runtime: Handle,
    count: u32,
    /// The size of all parts in bytes.
    pub(crate) size: u64,
    /// Nothing is written any more: what is dropped after a failure flushes its rest.
    pub(crate) failed: bool,
}

impl MosaicWriter {
    /// Begins a mosaic, which is complete once it is flushed. Call `buffered` within the runtime.
    pub(crate) fn buffered(store: &Store, name: BlobName) -> BufWriter<Self> {
        let parts = Self {
            store: store.clone(),
            name,
            runtime: Handle::current(),
            count: 0,
            size: 0,
            failed: false,
        };
        BufWriter::with_capacity(PART, parts)
    }
}

impl Write for MosaicWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed || std::thread::panicking() {
            return Err(io::Error::other("the mosaic has failed before"));
        }
        let part = Bytes::copy_from_slice(&bytes[..bytes.len().min(PART)]);
        let (name, length) = (self.name.part(self.count), part.len());
        let created = self.runtime.block_on(self.store.create(&name, part));
        self.failed = created.is_err();
        created.map_err(io::Error::other)?;
        self.count += 1;
        self.size += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a mosaic of this size in bytes, part by part. The first part is read before `read` returns.
pub async fn read(
    store: &Store,
    mosaic: &BlobName,
    size: u64,
) -> Result<impl Stream<Item = Result<Bytes, StoreError>> + use<>, StoreError> {
    let first = store.read(&mosaic.part(0), size).await?;
    let (store, mosaic) = (store.clone(), mosaic.clone());
    let left = size.saturating_sub(first.len() as u64);
    let rest = stream::try_unfold((1, left), move |(number, left)| {
        let (store, part) = (store.clone(), mosaic.part(number));
        async move {
            if left == 0 {
                return Ok(None);
            }
            let part = store.read(&part, left).await?;
            let left = left - part.len() as u64;
            Ok(Some((part, (number + 1, left))))
        }
    });
    Ok(stream::iter([Ok(first)]).chain(rest))
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use tokio::task::spawn_blocking;

    use super::*;
    use crate::storage::blob::Container;

    #[tokio::test]
    async fn a_mosaic_is_written_and_read_in_parts() {
        for size in [1, PART, PART + 1, 2 * PART + 5] {
            let (store, name) = (
                Store::memory(),
                BlobName::new(Container::ImageOutput, &["a"]),
            );
            let mut writer = MosaicWriter::buffered(&store, name.clone());
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let copy = bytes.clone();
            let written = spawn_blocking(move || {
                // As the encoder writes.
                for some in copy.chunks(1 << 18) {
                    writer.write_all(some).expect("written");
                }
                writer.flush().expect("written");
                writer.get_ref().size
            });
            let size = written.await.expect("no panic");
            let parts = read(&store, &name, size).await.expect("a first part");
            let parts: Vec<Bytes> = parts.try_collect().await.expect("all parts");
            assert!(parts.iter().all(|part| (1..=PART).contains(&part.len())));
            assert!(parts.concat() == bytes);

            let last = name.part(parts.len() as u32 - 1);
            store.remove(&last).await.expect("removed");
            let parts = async {
                read(&store, &name, size)
                    .await?
                    .try_collect::<Vec<_>>()
                    .await
            };
            let missing = parts.await.expect_err("a part is missing");
            assert!(matches!(missing, StoreError::Missing(name) if name == last));
        }
    }
}
