//! Rendered slices into one picture.

use std::io::{self, Write};

use image::RgbImage;
use thiserror::Error;

use super::plan::Plan;

/// Writes a mosaic as a PNG, slice by slice, holding one slice in memory at a time.
///
/// A joiner that is dropped before [`finish`](Self::finish) leaves an incomplete file.
pub struct Joiner<W: Write + 'static> {
    plan: Plan,
    next: u32,
    writer: png::StreamWriter<'static, W>,
}

/// Why slices do not make a mosaic.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Not a rendering of the slice whose turn it is.
    #[error("slice {index} is {}×{} pixels; {}×{} were planned", found.0, found.1, planned.0, planned.1)]
    Size {
        /// The slice's place, from 0.
        index: u32,
        /// Its width and height.
        found: (u32, u32),
        /// The width and height that it ought to have.
        planned: (u32, u32),
    },
    /// More slices than planned.
    #[error("there is a slice beyond the {planned} that were planned")]
    TooMany {
        /// How many were planned.
        planned: u32,
    },
    /// Fewer slices than planned.
    #[error("only {found} of {planned} slices are there")]
    TooFew {
        /// How many were pushed.
        found: u32,
        /// How many were planned.
        planned: u32,
    },
    /// The picture could not be written.
    #[error("the mosaic cannot be written")]
    Write(#[source] io::Error),
}

impl<W: Write + 'static> Joiner<W> {
    /// Begins a mosaic.
    ///
    /// # Errors
    ///
    /// [`JoinError::Write`].
    pub fn new(plan: Plan, out: W) -> Result<Self, JoinError> {
        let (width, height) = plan.output_size();
        let writer = begin(width, height, out).map_err(written)?;
        Ok(Self {
            plan,
            next: 0,
            writer,
        })
    }

    /// Adds the next slice. After an error nothing was added, except after
    /// [`JoinError::Write`], when the file is beyond repair.
    ///
    /// # Errors
    ///
    /// A slice of the wrong size or beyond the last; failure to write.
    pub fn push(&mut self, slice: &RgbImage) -> Result<(), JoinError> {
        let (index, planned) = (self.next, self.plan.slices());
        if index == planned {
            return Err(JoinError::TooMany { planned });
        }
        let (found, planned) = (slice.dimensions(), self.plan.slice_size(index));
        if found != planned {
            return Err(JoinError::Size {
                index,
                found,
                planned,
            });
        }
        self.writer
            .write_all(slice.as_raw())
            .map_err(JoinError::Write)?;
        self.next += 1;
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    ///
    /// Missing slices; failure to write.
    pub fn finish(self) -> Result<(), JoinError> {
        let (found, planned) = (self.next, self.plan.slices());
        if found < planned {
            return Err(JoinError::TooFew { found, planned });
        }
        self.writer.finish().map_err(written)
    }
}

impl<W: Write + 'static> std::fmt::Debug for Joiner<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (plan, next) = (&self.plan, &self.next);
        f.debug_struct("Joiner")
            .field("plan", plan)
            .field("next", next)
            .finish_non_exhaustive()
    }
}

/// A picture as a PNG, for a rendered slice on its way to the joiner.
///
/// # Panics
///
/// If the picture has no pixels, which a PNG cannot express.
pub fn encode_png(picture: &RgbImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = write_png(picture, &mut bytes);
    written.expect("writing a picture with pixels to memory cannot fail");
    bytes
}

fn write_png(picture: &RgbImage, out: &mut Vec<u8>) -> Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(out, picture.width(), picture.height());
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(picture.as_raw())?;
    writer.finish()
}

fn begin<W: Write>(
    width: u32,
    height: u32,
    out: W,
) -> Result<png::StreamWriter<'static, W>, png::EncodingError> {
    let mut encoder = png::Encoder::new(out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    encoder
        .write_header()?
        .into_stream_writer_with_size(1 << 18)
}

fn written(error: png::EncodingError) -> JoinError {
    JoinError::Write(match error {
        png::EncodingError::IoError(error) => error,
        other => io::Error::other(other),
    })
}
