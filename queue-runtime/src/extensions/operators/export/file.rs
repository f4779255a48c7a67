//! A file of exported messages, and the proof that must precede their deletion.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use queue_core::internal::file_access;

use super::ExportedMessage;

/// The bytes of lines that are written at once.
const AT_ONCE: usize = 1024 * 1024;

/// How each line begins.
const BEGIN: &[u8] = b"{\"queue\":";

/// A file of exported messages, a line of JSON each.
///
/// One process writes a file at a time: the file is locked while an `ExportFile` is open, and a second `ExportFile` is
/// refused. The file's lock is advisory on Unix, where [`keep`](Self::keep) notices what programs do that do not ask
/// for it. On Windows, no other program can write, move or delete the file while it is open.
///
/// Each method blocks its thread while it reads, writes or syncs. An error names the file.
///
/// ```
/// use std::time::Duration;
/// use queue_runtime::service::ExportFile;
/// use queue_runtime::{Message, testing};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// #
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = testing::service().await;
/// # service.submit(Order { number: 7 }).await?;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("orders.jsonl");
/// let orders = service.any_queue("order")?;
/// let mut file = ExportFile::create(&path)?;
/// loop {
///     let taken = orders.take(32, Duration::from_secs(300)).await?;
///     if taken.is_empty() {
///         break;
///     }
///     file.write(&taken.messages)?;
///     file.keep()?;
///     taken.delete().await?;
/// }
/// # assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ExportFile {
    path: PathBuf,
    file: File,
    /// The bytes of whole lines.
    length: u64,
    cut: u64,
}

impl ExportFile {
    /// Creates a new file; fails if the file exists. The file's name is synced to the disk.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists); the file system's error.
    pub fn create(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::open(path.into(), OpenOptions::new().create_new(true))
    }

    /// Opens a file of an earlier `ExportFile` to append to it, or creates the file. A torn last line, which an
    /// interrupted process leaves, is [cut off](Self::cut). A whole last line without its line end gets one.
    ///
    /// # Errors
    /// [`ResourceBusy`](io::ErrorKind::ResourceBusy) while another process has the file open;
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the file does not begin or end as an export does, or is no
    /// regular file; the file system's error.
    pub fn append(path: impl Into<PathBuf>) -> io::Result<Self> {
        let mut opened = Self::open(path.into(), OpenOptions::new().create(true))?;
        opened.mend()?;
        Ok(opened)
    }

    fn open(path: PathBuf, options: &mut OpenOptions) -> io::Result<Self> {
        options.read(true).write(true);
        // What is added after another program has shortened the file does not make it as long as it was.
        #[cfg(unix)]
        options.append(true);
        #[cfg(windows)]
        std::os::windows::fs::OpenOptionsExt::share_mode(options, 1);
        let file = options.open(&path).map_err(failed("open", &path))?;
        let opened = Self {
            length: 0,
            cut: 0,
            path,
            file,
        };
        if !opened.metadata()?.is_file() {
            return Err(opened.foreign("is not a regular file, which could be synced to the disk"));
        }
        match opened.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let problem = "is in use: another process writes or reads it";
                return Err(opened.error(io::ErrorKind::ResourceBusy, problem));
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &opened.path)(error)),
        }
        sync_folder(&opened.path).map_err(failed("sync the folder of", &opened.path))?;
        Ok(opened)
    }

    /// Appends messages to the file. After an error, none of the messages is in the file.
    ///
    /// # Errors
    /// The file system's error.
    pub fn write(&mut self, messages: &[ExportedMessage]) -> io::Result<u64> {
        let (mut lines, mut written) = (Vec::new(), 0);
        for message in messages {
            serde_json::to_writer(&mut lines, message)
                .map_err(|error| failed("write", &self.path)(error.into()))?;
            lines.push(b'\n');
            if lines.len() >= AT_ONCE {
                written += self.add(&lines, written)?;
                lines.clear();
            }
        }
        written += self.add(&lines, written)?;
        self.length += written;
        Ok(written)
    }

    fn add(&mut self, lines: &[u8], before: u64) -> io::Result<u64> {
        match self.file.write_all(lines) {
            Ok(()) => Ok(lines.len() as u64),
            Err(error) => {
                // What stays of the lines is noticed by the next call of `keep`, and cut off by the next `append`.
                let ours = self.length..=self.length + before + lines.len() as u64;
                if self.metadata().is_ok_and(|file| ours.contains(&file.len())) {
                    drop(self.file.set_len(self.length));
                }
                Err(failed("write", &self.path)(error))
            }
        }
    }

    /// Syncs the file to the disk, and proves what must be so before messages that were written to it are
    /// [deleted](super::Taken::delete): the file is still the one at its path, and has all the lines that were written to
    /// it and no others.
    ///
    /// # Errors
    /// If the file was deleted, moved, replaced, truncated, or written by another program; the file system's error.
    /// After an error, messages that were written since the last successful `keep` must not be deleted.
    pub fn keep(&self) -> io::Result<()> {
        self.file.sync_all().map_err(failed("sync", &self.path))?;
        let changed = |problem: &str| Err(self.error(io::ErrorKind::Other, problem));
        if !self.is_at_path()? {
            return changed(
                "is not at its path any more: it was deleted, moved or replaced while it was written",
            );
        }
        let (found, written) = (self.metadata()?.len(), self.length);
        if found != written {
            return changed(&format!(
                "has {found} bytes, and {written} were written: another program has changed it meanwhile"
            ));
        }
        Ok(())
    }

    /// Whether the open file is still the file at its path.
    ///
    /// # Errors
    /// The file system's error.
    pub fn is_at_path(&self) -> io::Result<bool> {
        match fs::metadata(&self.path) {
            Ok(found) => Ok(is_same(&self.metadata()?, &found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("look at", &self.path)(error)),
        }
    }

    /// Writes all that was written to this file to a new file, for messages whose file was deleted or replaced after
    /// they were deleted from their queue.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create); an error if the file was shortened.
    pub fn rescue(&mut self, path: impl Into<PathBuf>) -> io::Result<Self> {
        if self.metadata()?.len() < self.length {
            return Err(self.error(io::ErrorKind::UnexpectedEof, "was shortened"));
        }
        let mut new = Self::create(path)?;
        self.rewind(0)?;
        let mut lines = (&self.file).take(self.length);
        new.length = io::copy(&mut lines, &mut new.file).map_err(failed("write", &new.path))?;
        new.keep()?;
        Ok(new)
    }

    /// Whether the bytes are an incomplete line, as an interrupted process leaves it at the end of the file.
    #[must_use]
    pub fn is_torn(line: &[u8]) -> bool {
        let begins = line.starts_with(BEGIN) || BEGIN.starts_with(line);
        begins && serde_json::from_slice::<ExportedMessage>(line).is_err_and(|error| error.is_eof())
    }

    /// Returns how many bytes of a torn last line [`append`](Self::append) has cut off.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Returns the path by which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata().map_err(failed("look at", &self.path))
    }

    fn rewind(&mut self, to: u64) -> io::Result<()> {
        let moved = self.file.seek(SeekFrom::Start(to));
        moved.map(drop).map_err(failed("read", &self.path))
    }

    fn foreign(&self, problem: &str) -> io::Error {
        self.error(io::ErrorKind::InvalidData, problem)
    }

    fn error(&self, kind: io::ErrorKind, problem: &str) -> io::Error {
        io::Error::new(kind, format!("`{}` {problem}", self.path.display()))
    }

    /// Ends the last line of a file that has just been opened, or cuts it off.
    fn mend(&mut self) -> io::Result<()> {
        let length = self.metadata()?.len();
        let mut first = Vec::new();
        let read = BufReader::new(&self.file).read_until(b'\n', &mut first);
        read.map_err(failed("read", &self.path))?;
        if first.ends_with(b"\n") && !is_message(&first) {
            return Err(self.foreign("is not a file of an export: its first line is no message"));
        }
        let begin = self.last_line(length)?;
        let mut last = Vec::new();
        self.rewind(begin)?;
        let read = (&self.file).take(length - begin).read_to_end(&mut last);
        read.map_err(failed("read", &self.path))?;
        self.length = length;
        if last.is_empty() {
            return self.rewind(length);
        }
        if is_message(&last) {
            self.rewind(length)?;
            let ended = self.file.write_all(b"\n");
            ended.map_err(failed("write", &self.path))?;
            self.length += 1;
        } else if Self::is_torn(&last) {
            let cut = self.file.set_len(begin);
            cut.map_err(failed("write", &self.path))?;
            self.rewind(begin)?;
            (self.length, self.cut) = (begin, length - begin);
        } else {
            let bytes = last.len();
            let problem = format!("ends in {bytes} bytes that no export has written");
            return Err(self.foreign(&problem));
        }
        self.file.sync_all().map_err(failed("sync", &self.path))
    }

    /// Returns where the last line begins: at the file's end, if that is a line end.
    fn last_line(&mut self, length: u64) -> io::Result<u64> {
        let (mut end, mut block) = (length, vec![0; 64 * 1024]);
        while end > 0 {
            let begin = end.saturating_sub(block.len() as u64);
            let block = &mut block[..(end - begin) as usize];
            self.rewind(begin)?;
            let read = self.file.read_exact(block);
            read.map_err(failed("read", &self.path))?;
            if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
                return Ok(begin + at as u64 + 1);
            }
            end = begin;
        }
        Ok(0)
    }
}

fn is_message(line: &[u8]) -> bool {
    serde_json::from_slice::<ExportedMessage>(line).is_ok()
}

/// Makes the name of a file durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    // Only Unix can open folders.
    if !cfg!(unix) {
        return Ok(());
    }
    match path.canonicalize()?.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Whether an open file is the one that was found at its path.
#[cfg(unix)]
fn is_same(open: &Metadata, found: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    // A path below `/proc` leads to a file that has no name any more.
    open.nlink() > 0 && (open.dev(), open.ino()) == (found.dev(), found.ino())
}

/// Outside Unix, an open file cannot be deleted or moved.
#[cfg(not(unix))]
fn is_same(_: &Metadata, found: &Metadata) -> bool {
    found.is_file()
}

fn failed<'p>(operation: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> io::Error + 'p {
    move |error| {
        let (shown, access) = (path.display(), file_access(path, &error));
        io::Error::new(
            error.kind(),
            format!("failed to {operation} `{shown}`: {error}{access}"),
        )
    }
}
