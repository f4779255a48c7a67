//! The error of this package, and its texts.

use std::error::Error;
use std::fmt;
use std::io;

use thiserror::Error;

use super::library::MAX_FILES;
use super::plan::{Layout, MAX_OUTPUT, MAX_TILES, TileSize};

/// The error for a picture, a layout, a slice or a tile library that cannot be used.
///
/// The error's text says what was found and what is allowed.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct PictureError(#[from] Problem);

impl PictureError {
    /// Returns whether a retry with the same input fails again. Only a failure to write the mosaic is temporary.
    pub fn is_permanent(&self) -> bool {
        !matches!(self.0, Problem::Write(_))
    }
}

/// The cause of a [`PictureError`].
#[derive(Debug, Error)]
pub(crate) enum Problem {
    // Of any picture.
    #[error("the file is empty")]
    EmptyFile,
    #[error("the file is neither PNG nor JPEG")]
    UnknownFormat,
    #[error("the picture is {width}×{height} pixels; it must have at least 1×1")]
    NoPixels { width: u32, height: u32 },
    #[error(
        "the picture is {width}×{height} pixels, {} decoded; at most {max_side} a side and {} are allowed",
        Size(*bytes),
        Size(*max_bytes)
    )]
    TooLarge {
        width: u32,
        height: u32,
        bytes: u64,
        max_side: u32,
        max_bytes: u64,
    },
    #[error("the picture ends too early")]
    Truncated,
    #[error("the picture is damaged")]
    Damaged(#[source] Box<dyn Error + Send + Sync>),
    #[error("the source picture {name:?} cannot be used")]
    Source { name: String, source: Box<Self> },

    // Of a layout.
    #[error("the tile size is {0} pixels; 1 to {max} are allowed", max = TileSize::MAX)]
    TileSize(u8),
    #[error(
        "the number of tiles across is {0}; 1 to {max} are allowed",
        max = Layout::MAX_ACROSS
    )]
    Across(u32),
    #[error("the number of slices is {0}; 1 to {max} are allowed", max = Layout::MAX_SLICES)]
    Slices(u32),
    #[error("the mosaic would be {columns}×{rows} tiles; at most {MAX_TILES} are allowed")]
    TooManyTiles { columns: u32, rows: u64 },
    #[error("the mosaic would be {width}×{height} pixels; at most {MAX_OUTPUT} are allowed")]
    TooManyPixels { width: u64, height: u64 },

    // Of a tile library and its fingerprint.
    #[error("the tile library is empty: at least one picture is needed")]
    EmptyLibrary,
    #[error("none of the {count} tiles can be used; the first is {name:?}")]
    NoUsableTile {
        count: usize,
        name: String,
        source: Box<PictureError>,
    },
    #[error("the tile library has {0} pictures; at most {MAX_FILES} are allowed")]
    TooManyFiles(usize),
    #[error("the tile library is damaged")]
    DamagedLibrary(#[source] Option<png::DecodingError>),
    #[error("{0:?} is not a fingerprint: it must be 32 lower-case hexadecimal digits")]
    Fingerprint(String),

    // Of a mosaic.
    #[error("it is {}×{} pixels; {}×{} were planned", found.0, found.1, planned.0, planned.1)]
    Size {
        found: (u32, u32),
        planned: (u32, u32),
    },
    #[error("slice {} cannot be used", index + 1)]
    Slice { index: u32, source: Box<Self> },
    #[error("failed to write the mosaic")]
    Write(#[source] io::Error),
    #[error("the mosaic cannot be a JPEG")]
    Jpeg(#[source] Box<dyn Error + Send + Sync>),
}

impl Problem {
    /// The problem of a slice, by its index.
    pub(crate) fn of_slice(self, index: u32) -> PictureError {
        let source = Box::new(self);
        Self::Slice { index, source }.into()
    }
}

/// A number of bytes, shown in MiB from 1 MiB on.
///
/// ```
/// use pictures::Size;
///
/// assert_eq!(Size(512 << 20).to_string(), "512 MiB");
/// assert_eq!(Size(3 << 19).to_string(), "1.5 MiB");
/// assert_eq!(Size(14_399).to_string(), "14399 bytes");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self.0 {
            bytes if bytes < MIB => write!(f, "{bytes} bytes"),
            bytes if bytes.is_multiple_of(MIB) => write!(f, "{} MiB", bytes / MIB),
            bytes => write!(f, "{:.1} MiB", bytes as f64 / MIB as f64),
        }
    }
}
