//! Mosaics as JPEG.

use image::codecs::jpeg::JpegEncoder;
use thiserror::Error;

use super::decode::{DecodeError, decode_within};
use super::plan::MAX_OUTPUT;

/// The longest side of a JPEG, in pixels.
const MAX_SIDE: u32 = 65_535;

/// High, since tiles have fine detail.
const QUALITY: u8 = 92;

/// The error for a mosaic that cannot be a JPEG.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JpegError {
    /// It is not a usable PNG, or has more than 65,535 pixels a side.
    #[error("the mosaic cannot be read")]
    Read(#[source] DecodeError),
    /// It cannot be encoded.
    #[error("the mosaic cannot be encoded")]
    Encode(#[source] image::ImageError),
}

/// Converts a mosaic from PNG to JPEG.
///
/// # Errors
///
/// [`JpegError`].
pub fn png_to_jpeg(png: &[u8]) -> Result<Vec<u8>, JpegError> {
    // Twice, for what the decoder holds besides the pixels.
    let picture = decode_within(png, MAX_SIDE, MAX_OUTPUT * 6).map_err(JpegError::Read)?;
    let mut jpeg = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut jpeg, QUALITY);
    picture
        .write_with_encoder(encoder)
        .map_err(JpegError::Encode)?;
    Ok(jpeg)
}
