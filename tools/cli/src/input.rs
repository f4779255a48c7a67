//! What commands read: files and standard input, as text in UTF-8; anything else is named as what it is.

use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Cursor, Read as _};
use std::path::Path;

use bytes::Bytes;
use queue_runtime::internal::file_access;

use crate::failure::{Exit, Failure, Result};

/// What some programs begin a text in UTF-8 with, which is no part of the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes by which a file is recognised.
const HEAD: u64 = 64;

/// A file that is read, or standard input.
pub(crate) struct Input {
    name: String,
    reader: Box<dyn BufRead>,
}

impl Input {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// Another process writing the file is an error, too.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self {
                name: "the input".to_owned(),
                reader: Box::new(BufReader::new(io::stdin())),
            });
        }
        let name = format!("`{}`", path.display());
        let failed = |error: io::Error| {
            let access = file_access(path, &error);
            Failure::new(
                exit(&error),
                format!("failed to read {name}: {error}{access}"),
            )
        };
        let file = File::open(path).map_err(failed)?;
        // The lock is released when the file is closed. Where there are no locks, nobody has one.
        if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
            let text = format!("{name} is in use: another process writes it");
            return Err(Failure::new(Exit::Failed, text));
        }
        Ok(Self {
            name,
            reader: Box::new(BufReader::with_capacity(256 * 1024, file)),
        })
    }

    /// Refuses what does not begin as text in UTF-8.
    pub(crate) fn of_text(mut self) -> Result<Self> {
        let mut head = Vec::new();
        let read = self.reader.by_ref().take(HEAD).read_to_end(&mut head);
        read.map_err(|error| self.failed(&error))?;
        if let Some(what) = other_than_text(&head) {
            return Err(refused(&self.name, what));
        }
        self.reader = Box::new(Cursor::new(head).chain(self.reader));
        Ok(self)
    }

    /// Reads the next line with its end, without a byte order mark. Returns whether there was a line.
    pub(crate) fn next_line(&mut self, line: &mut Vec<u8>) -> Result<bool> {
        line.clear();
        let read = self.reader.read_until(b'\n', line);
        let read = read.map_err(|error| self.failed(&error))?;
        // Marks also stand where two files were put together.
        if line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(read > 0)
    }

    /// Reads all of standard input.
    pub(crate) fn all() -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let read = io::stdin().lock().read_to_end(&mut all);
        read.map_err(|error| Failure::input(&error))?;
        Ok(all)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::new(
            exit(error),
            format!("failed to read {}: {error}", self.name),
        )
    }
}

fn exit(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Failed,
    }
}

/// Returns a payload without what is not JSON around it.
///
/// # Errors
/// If the payload is not text in UTF-8, or empty. Whether the payload is JSON is for the library to say.
pub(crate) fn json(payload: &[u8]) -> Result<Bytes> {
    let json = payload.strip_prefix(BYTE_ORDER_MARK).unwrap_or(payload);
    let json = json.trim_ascii();
    let other = other_than_text(json).or(json.is_empty().then_some("empty"));
    match other {
        Some(what) => Err(refused("the payload", what)),
        None => Ok(Bytes::copy_from_slice(json)),
    }
}

fn refused(name: &str, what: &str) -> Failure {
    let text = format!("{name} is {what}, and JSON in UTF-8 is needed");
    let help =
        "unpack or convert it first, as `gzip -dc` or `iconv -t UTF-8` do, or name another file";
    Failure::new(Exit::Failed, text).with_help(help)
}

/// Says what bytes are that are not text in UTF-8. The bytes may be the beginning of more.
pub(crate) fn other_than_text(bytes: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 11] = [
        (b"\xff\xfe\0\0", "text in UTF-32"),
        (b"\0\0\xfe\xff", "text in UTF-32"),
        (b"\xff\xfe", "text in UTF-16"),
        (b"\xfe\xff", "text in UTF-16"),
        (b"\x1f\x8b", "compressed by gzip"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        (b"\xfd7zXZ\0", "compressed by xz"),
        (b"BZh", "compressed by bzip2"),
        (b"\x04\x22\x4d\x18", "compressed by LZ4"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"SQLite format 3\0", "a SQLite database"),
    ];
    let known = KNOWN.iter().find(|(begin, _)| bytes.starts_with(begin));
    // Every other byte of Latin letters is zero in UTF-16.
    let zeros = |from| bytes.iter().skip(from).step_by(2).all(|byte| *byte == 0);
    match std::str::from_utf8(bytes) {
        _ if known.is_some() => known.map(|(_, what)| *what),
        _ if bytes.len() > 3 && zeros(0) != zeros(1) => Some("text in UTF-16"),
        _ if bytes.contains(&0) => Some("binary data"),
        Err(error) if error.error_len().is_some() => {
            Some("not text in UTF-8, but in another encoding, or binary data")
        }
        _ => None,
    }
}
