//! Joining rendered slices into one picture.

use std::io::{self, Write};

use image::RgbImage;
use thiserror::Error;

use super::decode::{DecodeError, decode_within};
use super::plan::Plan;

/// Writes a mosaic as a PNG, slice by slice, with one slice in memory at a time.
///
/// A joiner that is dropped before [`finish`](Self::finish) leaves an incomplete file.
pub struct Joiner<W: Write + 'static> {
    plan: Plan,
    next: u32,
    writer: png::StreamWriter<'static, W>,
}

/// The error for slices that cannot be joined.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A slice has the wrong size.
    #[error("slice {index} is {}×{} pixels; {}×{} were planned", found.0, found.1, planned.0, planned.1)]
    Size {
        /// The slice's index, from 0.
        index: u32,
        /// Its width and height.
        found: (u32, u32),
        /// The planned width and height.
        planned: (u32, u32),
    },
    /// A slice is not a usable picture.
    #[error("slice {index} cannot be used")]
    Slice {
        /// The slice's index, from 0.
        index: u32,
        /// The cause.
        source: DecodeError,
    },
    /// There are more slices than planned.
    #[error("there are more than the {planned} planned slices")]
    TooMany {
        /// The number of planned slices.
        planned: u32,
    },
    /// There are fewer slices than planned.
    #[error("there are only {found} of {planned} slices")]
    TooFew {
        /// The number of slices pushed.
        found: u32,
        /// The number of planned slices.
        planned: u32,
    },
    /// The picture could not be written.
    #[error("write the mosaic")]
    Write(#[source] io::Error),
}

impl<W: Write + 'static> Joiner<W> {
    /// Starts a mosaic, and writes the header.
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

    /// Adds the next slice, as [`encode_png`] encoded it.
    ///
    /// # Errors
    ///
    /// A slice that is not a complete picture or is larger than planned, and those of
    /// [`push`](Self::push).
    pub fn push_png(&mut self, bytes: &[u8]) -> Result<(), JoinError> {
        let index = self.next;
        let (width, height) = self.plan.slice_size(index.min(self.plan.slices() - 1));
        let pixels = u64::from(width) * u64::from(height);
        // Twice, for what the decoder holds besides the pixels.
        let max_bytes = pixels * 6 + (1 << 20);
        let slice = decode_within(bytes, width.max(height), max_bytes)
            .map_err(|source| JoinError::Slice { index, source })?;
        self.push(&slice)
    }

    /// Adds the next slice. After [`JoinError::Write`] the file is unusable; after any other error nothing
    /// was added.
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

/// Encodes a picture as a PNG.
///
/// # Panics
///
/// If the picture has no pixels.
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

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;
    use crate::testing::plan;
    use crate::{decode, draw_scene};

    /// The output of a joiner, which the test reads.
    #[derive(Clone, Default)]
    struct Shared(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slices(plan: &Plan) -> Vec<RgbImage> {
        (0..plan.slices())
            .map(|index| {
                let (width, height) = plan.slice_size(index);
                RgbImage::from_fn(width, height, |x, y| Rgb([index as u8, x as u8, y as u8]))
            })
            .collect()
    }

    #[test]
    fn slices_stand_below_each_other() {
        let plan = plan(&draw_scene(30, 20), 10, 3);
        let (out, slices) = (Shared::default(), slices(&plan));
        let mut joiner = Joiner::new(plan, out.clone()).expect("a joiner");
        for slice in &slices {
            joiner.push_png(&encode_png(slice)).expect("a slice");
        }
        joiner.finish().expect("all slices");
        let joined = decode(&out.0.borrow()).expect("a PNG");
        assert_eq!(joined.dimensions(), plan.output_size());
        let expected: Vec<u8> = slices.into_iter().flat_map(RgbImage::into_raw).collect();
        assert!(joined.into_raw() == expected);
    }

    #[test]
    fn wrong_slices_are_refused_and_named() {
        let plan = plan(&draw_scene(30, 20), 10, 3);
        let slices = slices(&plan);
        let mut joiner = Joiner::new(plan, Vec::new()).expect("a joiner");
        joiner.push(&slices[0]).expect("a slice");
        let error = joiner
            .push(&RgbImage::new(240, 5))
            .expect_err("the wrong size");
        assert_eq!(
            error.to_string(),
            "slice 1 is 240×5 pixels; 240×48 were planned"
        );
        let error = joiner
            .push_png(&encode_png(&RgbImage::new(241, 5)))
            .expect_err("too wide");
        let JoinError::Slice { index: 1, source } = error else {
            panic!("another error: {error}");
        };
        assert!(matches!(
            source,
            DecodeError::TooLarge { max_side: 240, .. }
        ));
        let error = joiner.push_png(b"").expect_err("nothing");
        assert!(matches!(
            error,
            JoinError::Slice {
                source: DecodeError::Empty,
                ..
            }
        ));
        joiner.push(&slices[1]).expect("a slice");
        joiner.push(&slices[2]).expect("a slice");
        let error = joiner.push(&slices[2]).expect_err("one too many");
        assert!(matches!(error, JoinError::TooMany { planned: 3 }));
        joiner.finish().expect("all slices");

        let mut joiner = Joiner::new(plan, Vec::new()).expect("a joiner");
        joiner.push(&slices[0]).expect("a slice");
        let error = joiner.finish().expect_err("two are missing");
        assert_eq!(error.to_string(), "there are only 1 of 3 slices");
    }

    #[test]
    fn a_full_disk_is_told() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let plan = plan(&draw_scene(30, 20), 10, 3);
        let error = Joiner::new(plan, Full).expect_err("no room");
        assert!(
            matches!(error, JoinError::Write(cause) if cause.kind() == io::ErrorKind::StorageFull)
        );
    }
}
