use std::io::{self, Write};

use bytes::Bytes;
use queue_runtime::Failure;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::blob::BlobName;
use crate::picture::{JoinError, Joiner, Plan};
use crate::store::{Store, StoreError, failed};

/// The largest rendered slice, in bytes: more than the largest mosaic takes uncompressed.
const MAX_RENDERED: u64 = 2 << 30;
/// The size of the pieces in which a mosaic is uploaded, in bytes.
const PIECE: usize = 1 << 20;
/// How many pieces may be on their way.
const PIECES: usize = 4;

/// Joins slices into a mosaic, holding one of them in memory at a time. The mosaic appears in one
/// step, and is the same to the byte whoever joins it.
pub(super) async fn join(
    store: &Store,
    plan: Plan,
    slices: Vec<BlobName>,
    mosaic: &BlobName,
) -> Result<(), Failure> {
    let mut upload = store
        .upload(mosaic)
        .await
        .map_err(StoreError::into_failure)?;
    let (sender, mut pieces) = mpsc::channel(PIECES);
    let joining = {
        let (store, runtime) = (store.clone(), Handle::current());
        spawn_blocking(move || write(&runtime, &store, plan, &slices, Pieces::new(sender)))
    };
    while let Some(piece) = pieces.recv().await {
        let room = upload.wait_for_capacity(PIECES).await;
        room.map_err(|error| failed("write", mosaic, error).into_failure())?;
        upload.put(piece);
    }
    let ended = match joining.await? {
        Ok(()) => upload.finish().await.map(drop),
        Err(failure) => {
            if let Err(error) = upload.abort().await {
                tracing::warn!(blob = %mosaic, %error, "failed to give up an upload");
            }
            return Err(failure);
        }
    };
    ended.map_err(|error| failed("write", mosaic, error).into_failure())
}

fn write(
    runtime: &Handle,
    store: &Store,
    plan: Plan,
    slices: &[BlobName],
    out: Pieces,
) -> Result<(), Failure> {
    let mut joiner = Joiner::new(plan, out).map_err(failure)?;
    for slice in slices {
        let bytes = runtime.block_on(store.read(slice, MAX_RENDERED));
        joiner
            .push_png(&bytes.map_err(StoreError::into_failure)?)
            .map_err(failure)?;
    }
    joiner.finish().map_err(failure)
}

fn failure(error: JoinError) -> Failure {
    match error {
        JoinError::Write(_) => Failure::retry(error),
        _ => Failure::reject(error),
    }
}

/// Gathers what is written into pieces and sends them off.
struct Pieces {
    gathered: Vec<u8>,
    sender: mpsc::Sender<Bytes>,
}

impl Pieces {
    fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self {
            gathered: Vec::with_capacity(PIECE),
            sender,
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.gathered, Vec::with_capacity(PIECE));
        let sent = self.sender.blocking_send(piece.into());
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload was given up"))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.gathered.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.gathered.extend_from_slice(taken);
        if self.gathered.len() == PIECE {
            self.send()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            Ok(())
        } else {
            self.send()
        }
    }
}

/// The PNG writer drops what it writes to without flushing it.
impl Drop for Pieces {
    fn drop(&mut self) {
        // An error says that the upload was given up, which is told there.
        let _ = self.flush();
    }
}
