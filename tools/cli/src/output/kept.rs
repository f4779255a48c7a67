use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Seek as _, Write as _};

use crate::failure::{Exit, Failure, Result};

/// Standard output, where messages are written before they are deleted from their queue.
///
/// A regular file is locked until the `KeptOutput` is dropped, so that no second process writes its messages over those
/// of the first. The lock is advisory: [`check`](Self::check) and [`keep`](Self::keep) notice what programs do that do
/// not ask for it. Other output, such as a pipe, is only written.
#[derive(Debug)]
pub(crate) struct KeptOutput {
    file: Option<File>,
}

impl KeptOutput {
    /// Locks standard output.
    ///
    /// # Errors
    /// If the output is a file that another process has locked, or that cannot be locked.
    pub(crate) fn lock() -> Result<Self> {
        let file = regular_file()?;
        match file.as_ref().map_or(Ok(()), File::try_lock) {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => {
                let text = "the file of the output is in use: another process writes or reads it";
                let failure = Failure::new(Exit::Failed, text);
                Err(failure.with_help("write to another file, and use `>>` for one that exists"))
            }
            Err(TryLockError::Error(error)) => {
                let text = format!("failed to lock the file of the output: {error}");
                Err(Failure::new(Exit::Failed, text))
            }
        }
    }

    /// Checks that a file still has a name, and all that was written to it. To be called before the next message is written,
    /// too: behind the end of a file that was shortened, that would fill the gap with zeros.
    ///
    /// # Errors
    /// If the file was deleted or shortened; the file system's error.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(mut file) = self.file.as_ref() else {
            return Ok(());
        };
        // The position comes first: programs that share it may write meanwhile. Where a file is appended to, the
        // position is 0 before the first line, and then the end of the last.
        let position = file.stream_position()?;
        let metadata = file.metadata()?;
        let found = metadata.len();
        if !has_name(&metadata) {
            let text = "the file of the output was deleted";
            Err(Failure::new(Exit::Failed, text))
        } else if found < position {
            let text = format!(
                "the file of the output was shortened: it has {found} bytes, and was written up to byte {position}"
            );
            Err(Failure::new(Exit::Failed, text))
        } else {
            Ok(())
        }
    }

    /// Makes sure that what was written is kept: if it is in a file, that it is all there and on the disk.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check), after which what was written since the last call must not be deleted from
    /// its queue.
    pub(crate) fn keep(&self) -> Result<()> {
        io::stdout().lock().flush()?;
        if let Some(file) = &self.file {
            file.sync_all()?;
        }
        self.check()
    }
}

/// A shell that has opened the file may have it open for longer, and the lock is held as long as that.
impl Drop for KeptOutput {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            drop(file.unlock());
        }
    }
}

/// Returns standard output if it is a regular file.
#[cfg(unix)]
fn regular_file() -> io::Result<Option<File>> {
    use std::os::fd::AsFd as _;

    let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Outside Unix, standard output is only written.
#[cfg(not(unix))]
fn regular_file() -> io::Result<Option<File>> {
    Ok(None)
}

#[cfg(unix)]
fn has_name(metadata: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(metadata) > 0
}

/// Outside Unix, an open file cannot be deleted.
#[cfg(not(unix))]
fn has_name(_: &Metadata) -> bool {
    true
}
