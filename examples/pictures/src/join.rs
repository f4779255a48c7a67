//! Joining rendered slices into one picture.

use std::io::{self, Write};

use super::decode::decode_within;
use super::error::{PictureError, Problem};
use super::picture::{Picture, png_encoder};
use super::plan::Plan;

/// Writes a mosaic as a PNG, slice by slice, with one slice in memory at a time.
///
/// A joiner that is dropped before [`finish`](Self::finish) leaves an incomplete file.
pub struct Joiner<W: Write + 'static> {
    plan: Plan,
    next: u32,
    writer: png::StreamWriter<'static, W>,
}

impl<W: Write + 'static> Joiner<W> {
    /// Starts a mosaic, and writes the header.
    ///
    /// # Errors
    ///
    /// Failure to write.
    pub fn new(plan: Plan, out: W) -> Result<Self, PictureError> {
        let started = png_encoder(out, plan.output_size()).write_header();
        let writer = started.and_then(|writer| writer.into_stream_writer_with_size(1 << 18));
        let writer = writer.map_err(written)?;
        Ok(Self {
            plan,
            next: 0,
            writer,
        })
    }

    /// Adds the next slice, as [`Picture::to_png`] encoded it.
    ///
    /// # Errors
    ///
    /// A slice that is not a complete picture or is larger than planned, and those of
    /// [`push`](Self::push).
    pub fn push_png(&mut self, bytes: &[u8]) -> Result<(), PictureError> {
        let index = self.next;
        let (width, height) = self.plan.slice_size(index.min(self.plan.slices() - 1));
        let pixels = u64::from(width) * u64::from(height);
        // Twice, for what the decoder holds besides the pixels.
        let max_bytes = pixels * 6 + (1 << 20);
        let slice = decode_within(bytes, width.max(height), max_bytes).map_err(|problem| {
            Problem::Slice {
                index,
                source: Box::new(problem),
            }
        })?;
        self.push(&Picture(slice))
    }

    /// Adds the next slice. After a failure to write the file is unusable; after any other error nothing was
    /// added.
    ///
    /// # Errors
    ///
    /// A slice of the wrong size or beyond the last; failure to write.
    pub fn push(&mut self, slice: &Picture) -> Result<(), PictureError> {
        let (index, planned) = (self.next, self.plan.slices());
        if index == planned {
            return Err(Problem::TooManySlices { planned }.into());
        }
        let (found, planned) = (slice.dimensions(), self.plan.slice_size(index));
        if found != planned {
            return Err(Problem::SliceSize {
                index,
                found,
                planned,
            }
            .into());
        }
        let written = self.writer.write_all(slice.0.as_raw());
        written.map_err(Problem::Write)?;
        self.next += 1;
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    ///
    /// Missing slices; failure to write.
    pub fn finish(self) -> Result<(), PictureError> {
        let (found, planned) = (self.next, self.plan.slices());
        if found < planned {
            return Err(Problem::TooFewSlices { found, planned }.into());
        }
        Ok(self.writer.finish().map_err(written)?)
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

fn written(error: png::EncodingError) -> Problem {
    Problem::Write(match error {
        png::EncodingError::IoError(error) => error,
        other => io::Error::other(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{plan, report};

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

    fn slices(plan: &Plan) -> Vec<Picture> {
        (0..plan.slices())
            .map(|index| {
                let (width, height) = plan.slice_size(index);
                Picture::from_fn(width, height, |x, y| [index as u8, x as u8, y as u8])
            })
            .collect()
    }

    #[test]
    fn slices_stand_below_each_other() {
        let plan = plan(&Picture::scene(30, 20), 10, 3);
        let (out, slices) = (Shared::default(), slices(&plan));
        let mut joiner = Joiner::new(plan, out.clone()).expect("a joiner");
        for slice in &slices {
            joiner.push_png(&slice.to_png()).expect("a slice");
        }
        joiner.finish().expect("all slices");
        let joined = Picture::decode("joined", &out.0.borrow()).expect("a PNG");
        assert_eq!(joined.dimensions(), plan.output_size());
        let expected = slices.into_iter().flat_map(|slice| slice.0.into_raw());
        assert!(joined.0.into_raw() == expected.collect::<Vec<u8>>());
    }

    #[test]
    fn wrong_slices_are_refused_and_named() {
        let plan = plan(&Picture::scene(30, 20), 10, 3);
        let slices = slices(&plan);
        let mut joiner = Joiner::new(plan, Vec::new()).expect("a joiner");
        joiner.push(&slices[0]).expect("a slice");
        let error = joiner
            .push(&Picture::from_fn(240, 5, |_, _| [0; 3]))
            .expect_err("the wrong size");
        assert_eq!(
            report(&error),
            "slice 1 is 240×5 pixels; 240×48 were planned"
        );
        let error = joiner
            .push_png(&Picture::from_fn(241, 5, |_, _| [0; 3]).to_png())
            .expect_err("too wide");
        assert_eq!(
            report(&error),
            "slice 1 cannot be used: the picture is 241×5 pixels, 3615 bytes decoded; \
             at most 240 a side and 1.1 MiB are allowed"
        );
        let error = joiner.push_png(b"").expect_err("nothing");
        assert_eq!(report(&error), "slice 1 cannot be used: the file is empty");
        assert!(error.is_permanent());
        joiner.push(&slices[1]).expect("a slice");
        joiner.push(&slices[2]).expect("a slice");
        let error = joiner.push(&slices[2]).expect_err("one too many");
        assert_eq!(report(&error), "there are more than the 3 planned slices");
        joiner.finish().expect("all slices");

        let mut joiner = Joiner::new(plan, Vec::new()).expect("a joiner");
        joiner.push(&slices[0]).expect("a slice");
        let error = joiner.finish().expect_err("two are missing");
        assert_eq!(report(&error), "there are only 1 of 3 slices");
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
        let plan = plan(&Picture::scene(30, 20), 10, 3);
        let error = Joiner::new(plan, Full).expect_err("no room");
        let cause = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(
            report(&error),
            format!("failed to write the mosaic: {cause}")
        );
        assert!(!error.is_permanent());
    }
}
