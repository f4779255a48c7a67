//! Joining rendered slices into one picture.

use std::io::{self, Write};

use super::decode::decode_sized;
use super::error::{PictureError, Problem};
use super::picture::png_encoder;
use super::plan::Plan;

/// Joins rendered slices, as [`Picture::to_png`](super::Picture::to_png) encoded them, into a mosaic: a PNG, which is
/// written to `out`. One slice is in memory at a time.
///
/// # Errors
///
/// [`PictureError`] for a slice that is not a picture of the planned size and for a failure to write, and the errors of
/// `slice`, which reads the slice at an index.
pub fn join<E: From<PictureError>, B: AsRef<[u8]>>(
    plan: &Plan,
    out: impl Write,
    mut slice: impl FnMut(u32) -> Result<B, E>,
) -> Result<(), E> {
    let failed = |error: io::Error| PictureError::from(Problem::Write(error));
    let encoder = png_encoder(out, plan.output_size());
    let mut header = encoder
        .write_header()
        .map_err(|error| failed(error.into()))?;
    let stream = header.stream_writer_with_size(1 << 18);
    let mut writer = stream.map_err(|error| failed(error.into()))?;
    for index in 0..plan.slices() {
        let decoded = decode_sized(slice(index)?.as_ref(), plan.slice_size(index));
        let decoded = decoded.map_err(|problem| problem.of_slice(index))?;
        writer.write_all(decoded.as_raw()).map_err(failed)?;
    }
    writer.finish().map_err(|error| failed(error.into()))?;
    header.finish().map_err(|error| failed(error.into()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;
    use crate::testing::{plan, report};

    #[test]
    fn slices_stand_below_each_other_and_wrong_ones_are_named() {
        let plan = plan(&Picture::scene(30, 20), 10, 3);
        let slice = |index: u32| {
            let (width, height) = plan.slice_size(index);
            Picture::from_fn(width, height, |x, y| [index as u8, x as u8, y as u8])
        };
        let mut joined = Vec::new();
        let png = |index| Ok::<_, PictureError>(slice(index).to_png());
        join(&plan, &mut joined, png).expect("all slices");
        let joined = Picture::decode("joined", &joined).expect("a PNG");
        assert_eq!(joined.dimensions(), plan.output_size());
        let expected = (0..3).flat_map(|index| slice(index).0.into_raw());
        assert!(joined.0.into_raw() == expected.collect::<Vec<u8>>());

        for (wrong, expected) in [
            (
                Picture::from_fn(240, 5, |_, _| [0; 3]).to_png(),
                "it is 240×5 pixels; 240×48 were planned",
            ),
            (Vec::new(), "the file is empty"),
        ] {
            let joined = join(&plan, io::sink(), |index| match index {
                1 => Ok::<_, PictureError>(wrong.clone()),
                _ => Ok(slice(index).to_png()),
            });
            let error = report(&joined.expect_err("a wrong slice"));
            assert_eq!(error, format!("slice 2 cannot be used: {expected}"));
        }
    }
}
