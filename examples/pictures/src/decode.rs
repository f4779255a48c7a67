//! Decoding of untrusted pictures, within limits of size and memory.

use std::error::Error;
use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};

use super::error::Problem;

/// The longest side of a picture that is decoded, in pixels.
const MAX_SIDE: u32 = 20_000;

/// The most memory that decoding one picture may take, in bytes.
const MAX_DECODED: u64 = 512 << 20;

/// Decodes a PNG or a JPEG, rotated as its metadata says, with transparency blended onto white.
pub(super) fn decode(bytes: &[u8]) -> Result<RgbImage, Problem> {
    decode_within(bytes, MAX_SIDE, MAX_DECODED)
}

/// Checks the format and the size, which the first bytes tell.
pub(super) fn check(bytes: &[u8]) -> Result<(u32, u32), Problem> {
    format_within(bytes, MAX_SIDE, MAX_DECODED).map(|(_, size)| size)
}

/// Decodes a PNG or a JPEG within these limits.
pub(super) fn decode_within(
    bytes: &[u8],
    max_side: u32,
    max_bytes: u64,
) -> Result<RgbImage, Problem> {
    let (format, (width, height)) = format_within(bytes, max_side, max_bytes)?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(max_side);
    limits.max_image_height = Some(max_side);
    limits.max_alloc = Some(max_bytes);
    let too_large = |bytes| Problem::TooLarge {
        width,
        height,
        bytes,
        max_side,
        max_bytes,
    };
    // The JPEG decoder fills missing pixels with grey and reports no error.
    if format == ImageFormat::Jpeg && !jpeg_has_an_end(bytes) {
        return Err(Problem::Truncated);
    }

    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    if decoder.total_bytes() > max_bytes {
        return Err(too_large(decoder.total_bytes()));
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|error| match error {
        ImageError::Limits(_) => too_large(rgb_bytes(width, height)),
        other => damaged(other),
    })?;
    picture.apply_orientation(orientation);
    Ok(on_white(picture))
}

/// Decodes a picture of this size, such as a slice.
pub(super) fn decode_sized(bytes: &[u8], planned: (u32, u32)) -> Result<RgbImage, Problem> {
    let (width, height) = planned;
    // Twice, for what the decoder holds besides the pixels.
    let max_bytes = u64::from(width) * u64::from(height) * 6 + (1 << 20);
    let (_, found) = format_within(bytes, u32::MAX, u64::MAX)?;
    if found != planned {
        return Err(Problem::Size { found, planned });
    }
    decode_within(bytes, width.max(height), max_bytes)
}

/// Returns the format and the size in pixels, unless the picture is beyond the limits.
fn format_within(
    bytes: &[u8],
    max_side: u32,
    max_bytes: u64,
) -> Result<(ImageFormat, (u32, u32)), Problem> {
    if bytes.is_empty() {
        return Err(Problem::EmptyFile);
    }
    let format = match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg)) => format,
        _ => return Err(Problem::UnknownFormat),
    };
    let (width, height) = ImageReader::with_format(Cursor::new(bytes), format)
        .into_dimensions()
        .map_err(damaged)?;
    if width == 0 || height == 0 {
        return Err(Problem::NoPixels { width, height });
    }
    let bytes = rgb_bytes(width, height);
    if width > max_side || height > max_side || bytes > max_bytes {
        return Err(Problem::TooLarge {
            width,
            height,
            bytes,
            max_side,
            max_bytes,
        });
    }
    Ok((format, (width, height)))
}

fn rgb_bytes(width: u32, height: u32) -> u64 {
    u64::from(width) * u64::from(height) * 3
}

fn damaged(error: ImageError) -> Problem {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::UnexpectedEof
        {
            return Problem::Truncated;
        }
        cause = inner.source();
    }
    Problem::Damaged(innermost(&error).into())
}

/// The text of the innermost cause, on one line: the decoders repeat it in every error around it, and some
/// write line breaks as Rust does in a string.
fn innermost(error: &ImageError) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string().replace("\\n", " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").trim_matches('"').trim().to_owned()
}

fn on_white(picture: DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8();
    }
    let seen = picture.into_rgba8();
    RgbImage::from_fn(seen.width(), seen.height(), |x, y| {
        let [red, green, blue, alpha] = seen.get_pixel(x, y).0.map(u32::from);
        let over = |channel: u32| ((channel * alpha + 255 * (255 - alpha) + 127) / 255) as u8;
        image::Rgb([over(red), over(green), over(blue)])
    })
}

/// Whether an end-of-image marker follows the first scan. Segments before the scan state their length and may hold a
/// thumbnail with an end of its own.
fn jpeg_has_an_end(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[0xff, marker]) = bytes.get(at..at + 2) {
        match marker {
            0xff => at += 1,
            0x01 | 0xd0..=0xd8 => at += 2,
            0xda => return bytes[at..].windows(2).any(|pair| pair == [0xff, 0xd9]),
            _ => {
                let Some(&[high, low]) = bytes.get(at + 2..at + 4) else {
                    return false;
                };
                at += 2 + usize::from(u16::from_be_bytes([high, low]));
            }
        }
    }
    // There is no scan where one should be: the decoder reports the error better.
    at < bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;
    use crate::testing::report;

    fn picture() -> Picture {
        Picture::from_fn(80, 60, |x, y| [x as u8 * 3, y as u8 * 4, 99])
    }

    #[test]
    fn png_and_jpeg_are_read_and_what_is_no_picture_is_named() {
        assert_eq!(decode(&picture().to_png()).expect("a PNG"), picture().0);
        let jpeg = decode(&picture().to_jpeg()).expect("a JPEG");
        assert_eq!(jpeg.dimensions(), (80, 60));
        for (bytes, expected) in [
            (&b""[..], "the file is empty"),
            (b"GIF89a....", "the file is neither PNG nor JPEG"),
        ] {
            let error = Picture::decode("beach.jpg", bytes).expect_err("no picture");
            let expected = format!("the source picture \"beach.jpg\" cannot be used: {expected}");
            assert_eq!(report(&error), expected);
        }
    }

    #[test]
    fn any_cut_is_noticed() {
        // Without its last 12 bytes, a mere end mark, a PNG still has all its pixels.
        for (whole, last) in [(picture().to_png(), 13), (picture().to_jpeg(), 1)] {
            for part in [12, whole.len() / 2, whole.len() - 40, whole.len() - last] {
                let error = decode(&whole[..part]).err();
                assert!(
                    matches!(error, Some(Problem::Truncated | Problem::Damaged(_))),
                    "{part} of {}: {error:?}",
                    whole.len()
                );
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_is_decoded() {
        let mut bytes = picture().to_png();
        // The header's checksum is verified first, so it has to be right for the bomb to be one.
        bytes[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]);
        let crc = crc32fast::hash(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = decode(&bytes).expect_err("30,000 pixels a side");
        let is_told = matches!(error, Problem::TooLarge { width: 30_000, .. });
        assert!(is_told, "{error:?}");
        for (side, bytes) in [(79, MAX_DECODED), (MAX_SIDE, 80 * 60 * 3 - 1)] {
            let refused = decode_within(&picture().to_png(), side, bytes);
            assert!(matches!(refused, Err(Problem::TooLarge { .. })));
        }
    }
}
