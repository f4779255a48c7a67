use std::io::{self, Write};

use bytes::Bytes;
use queue_runtime::Failure;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::storage::blob::BlobName;
use crate::storage::store::{Store, failed};
use pictures::{Joiner, Plan};

/// The size limit of a rendered slice, in bytes: more than the largest mosaic takes uncompressed.
const MAX_RENDERED: u64 = 2 << 30;
/// The size of a part of the upload, in bytes.
const PART_SIZE: usize = 1 << 20;
/// The maximum number of parts in flight.
const MAX_PARTS: usize = 4;

/// Joins slices into a mosaic, with one slice in memory at a time. The mosaic appears atomically, and
/// its bytes depend on the slices only.
pub(super) async fn join(
    store: &Store,
    plan: Plan,
    slices: Vec<BlobName>,
    mosaic: &BlobName,
) -> Result<(), Failure> {
    let mut upload = store.upload(mosaic).await?;
    let (sender, mut parts) = mpsc::channel(MAX_PARTS);
    let joining = {
        let (store, runtime) = (store.clone(), Handle::current());
        spawn_blocking(move || write(&runtime, &store, plan, &slices, PartWriter::new(sender)))
    };
    while let Some(part) = parts.recv().await {
        let room = upload.wait_for_capacity(MAX_PARTS).await;
        room.map_err(|error| failed("write", mosaic, error))?;
        upload.put(part);
    }
    let ended = match joining.await? {
        Ok(()) => upload.finish().await.map(drop),
        Err(failure) => {
            if let Err(error) = upload.abort().await {
                tracing::warn!(blob = %mosaic, %error, "failed to abort an upload");
            }
            return Err(failure);
        }
    };
    Ok(ended.map_err(|error| failed("write", mosaic, error))?)
}

fn write(
    runtime: &Handle,
    store: &Store,
    plan: Plan,
    slices: &[BlobName],
    out: PartWriter,
) -> Result<(), Failure> {
    let mut joiner = Joiner::new(plan, out)?;
    for slice in slices {
        let bytes = runtime.block_on(store.read(slice, MAX_RENDERED));
        joiner.push_png(&bytes?)?;
    }
    Ok(joiner.finish()?)
}

/// Splits its input into parts of the upload.
struct PartWriter {
    buffer: Vec<u8>,
    sender: mpsc::Sender<Bytes>,
}

impl PartWriter {
    fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self {
            buffer: Vec::with_capacity(PART_SIZE),
            sender,
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let part = std::mem::replace(&mut self.buffer, Vec::with_capacity(PART_SIZE));
        let sent = self.sender.blocking_send(part.into());
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload was aborted"))
    }
}

impl Write for PartWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PART_SIZE - self.buffer.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() == PART_SIZE {
            self.send()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            self.send()
        }
    }
}

/// Flushes, since the PNG writer drops its output without doing so.
impl Drop for PartWriter {
    fn drop(&mut self) {
        // Fails only if the upload was aborted, which is reported there.
        let _ = self.flush();
    }
}
