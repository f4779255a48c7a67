//! Pictures, and how they are read and written.

use std::io::Write;

use image::codecs::jpeg::JpegEncoder;
use image::{ImageResult, Rgb, RgbImage};

use super::decode::{check, decode, decode_within};
use super::error::{PictureError, Problem};
use super::plan::MAX_OUTPUT;
use super::resample::{Area, scale};
use super::scene::Scene;

/// The longest side of a JPEG, in pixels.
const MAX_JPEG_SIDE: u32 = 65_535;

/// High, since tiles have fine detail.
const JPEG_QUALITY: u8 = 92;

/// A picture in memory, with 8 bits for each of red, green and blue.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture(pub(super) RgbImage);

impl Picture {
    /// Draws the built-in source picture: [`Scene::Sunset`]. Equal sizes give equal bytes.
    ///
    /// The scene is composed for an aspect ratio of 3:2, such as 960×640 pixels; wider pictures show more water and
    /// sky at the right.
    pub fn scene(width: u32, height: u32) -> Self {
        Scene::Sunset.draw(width, height)
    }

    /// Makes a picture from the red, green and blue of each pixel.
    pub fn from_fn(width: u32, height: u32, mut pixel: impl FnMut(u32, u32) -> [u8; 3]) -> Self {
        Self(RgbImage::from_fn(width, height, |x, y| Rgb(pixel(x, y))))
    }

    /// Decodes a source picture, a PNG or a JPEG, rotated as its metadata says, with transparency blended onto
    /// white. `name` is for the error.
    ///
    /// # Errors
    ///
    /// [`PictureError`] unless the bytes are a complete, undamaged picture of at most 20,000 pixels a side and 512 MiB
    /// decoded.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, PictureError> {
        Ok(Self(decode(bytes).map_err(in_source(name))?))
    }

    /// Checks what the first bytes of a source picture tell without decoding it: its format and its size. Returns width
    /// and height, before a rotation. `name` is for the error.
    ///
    /// # Errors
    ///
    /// The errors of [`decode`](Self::decode), but a damaged picture may pass.
    pub fn check(name: &str, bytes: &[u8]) -> Result<(u32, u32), PictureError> {
        Ok(check(bytes).map_err(in_source(name))?)
    }

    /// The width and height in pixels.
    pub fn dimensions(&self) -> (u32, u32) {
        self.0.dimensions()
    }

    /// Encodes the picture as a PNG.
    ///
    /// # Panics
    ///
    /// If the picture has no pixels.
    pub fn to_png(&self) -> Vec<u8> {
        encode_png(&self.0)
    }

    /// Encodes the picture as a JPEG for a screen.
    ///
    /// # Panics
    ///
    /// If the picture has no pixels, or more than 65,535 a side.
    pub fn to_jpeg(&self) -> Vec<u8> {
        encode_jpeg(&self.0).expect("writing a picture with pixels to memory cannot fail")
    }

    /// Scales the picture down to at most `side` pixels a side.
    pub fn within(self, side: u32) -> Self {
        let (width, height) = self.dimensions();
        let longest = width.max(height);
        if longest <= side {
            return self;
        }
        let scaled = |length: u32| {
            let length = u64::from(length) * u64::from(side) / u64::from(longest);
            length.max(1) as u32
        };
        let (width, height) = (scaled(width), scaled(height));
        Self(scale(&self.0, Area::whole(&self.0), width, height))
    }

    /// Converts a mosaic from PNG to JPEG.
    ///
    /// # Errors
    ///
    /// [`PictureError`] unless `png` is a usable PNG of at most 65,535 pixels a side.
    pub fn png_to_jpeg(png: &[u8]) -> Result<Vec<u8>, PictureError> {
        // Twice, for what the decoder holds besides the pixels.
        let picture = decode_within(png, MAX_JPEG_SIDE, MAX_OUTPUT * 6)
            .map_err(|error| Problem::Jpeg(error.into()))?;
        Ok(encode_jpeg(&picture).map_err(|error| Problem::Jpeg(error.into()))?)
    }
}

/// Names the source picture that has a problem.
fn in_source(name: &str) -> impl FnOnce(Problem) -> Problem {
    move |problem| Problem::Source {
        name: name.to_owned(),
        source: Box::new(problem),
    }
}

/// Encodes a picture that has pixels as a PNG.
pub(super) fn encode_png(picture: &RgbImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = png_encoder(&mut bytes, picture.dimensions())
        .write_header()
        .and_then(|mut writer| {
            writer.write_image_data(picture.as_raw())?;
            writer.finish()
        });
    written.expect("writing a picture with pixels to memory cannot fail");
    bytes
}

fn encode_jpeg(picture: &RgbImage) -> ImageResult<Vec<u8>> {
    let mut jpeg = Vec::new();
    picture.write_with_encoder(JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY))?;
    Ok(jpeg)
}

/// An encoder of a PNG of this width and height.
pub(super) fn png_encoder<'a, W: Write>(
    out: W,
    (width, height): (u32, u32),
) -> png::Encoder<'a, W> {
    let mut encoder = png::Encoder::new(out, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    encoder
}
