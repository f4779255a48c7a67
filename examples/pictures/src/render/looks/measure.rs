//! Numbers that describe how a mosaic looks.

use std::f32::consts::TAU;

use image::RgbImage;
use image::imageops::crop_imm;
use palette::color_difference::Ciede2000;
use palette::{FromColor, Lab, LinSrgb, Srgb};

use crate::resample::{Area, averages};

/// A mosaic's tiles, row by row.
pub(super) struct Placed<'a> {
    pub(super) mosaic: &'a RgbImage,
    pub(super) columns: u32,
    pub(super) rows: u32,
    /// The index of the tile in each place.
    pub(super) tiles: &'a [u32],
}

/// The mean ΔE2000 between two pictures that are shrunk to one pixel for each place of the mosaic:
/// averaged in linear light, and averaged in sRGB as many programs do.
pub(super) fn difference(source: &RgbImage, placed: &Placed<'_>) -> (f32, f32) {
    let in_light = |image| -> Vec<Lab> {
        let light = averages(image, Area::whole(image), placed.columns, placed.rows);
        light.into_iter().map(Lab::from_color).collect()
    };
    let in_bytes = |image| -> Vec<Lab> { shrunk(image, placed.columns, placed.rows) };
    let mean = |a: Vec<Lab>, b: Vec<Lab>| {
        let sum: f32 = a.iter().zip(&b).map(|(a, b)| a.difference(*b)).sum();
        sum / a.len() as f32
    };
    (
        mean(in_light(source), in_light(placed.mosaic)),
        mean(in_bytes(source), in_bytes(placed.mosaic)),
    )
}

/// The mean of the bytes of each cell of a grid.
fn shrunk(image: &RgbImage, columns: u32, rows: u32) -> Vec<Lab> {
    let (width, height) = image.dimensions();
    let edge =
        |at: u32, of: u32, side: u32| (u64::from(at) * u64::from(side) / u64::from(of)) as u32;
    let mut cells = Vec::new();
    for row in 0..rows {
        let (top, bottom) = (edge(row, rows, height), edge(row + 1, rows, height));
        for column in 0..columns {
            let (left, right) = (
                edge(column, columns, width),
                edge(column + 1, columns, width),
            );
            let (right, bottom) = (right.max(left + 1), bottom.max(top + 1));
            let mut sum = [0.0; 3];
            for pixel in crop_imm(image, left, top, right - left, bottom - top)
                .to_image()
                .pixels()
            {
                sum.iter_mut()
                    .zip(pixel.0)
                    .for_each(|(sum, byte)| *sum += f32::from(byte));
            }
            let count = ((right - left) * (bottom - top)) as f32 * 255.0;
            let [red, green, blue] = sum.map(|sum| sum / count);
            cells.push(Lab::from_color(
                Srgb::new(red, green, blue).into_linear::<f32>(),
            ));
        }
    }
    cells
}

fn lightness(image: &RgbImage) -> Vec<f32> {
    image
        .pixels()
        .map(|pixel| Lab::from_color(Srgb::from(pixel.0).into_linear::<f32>()).l)
        .collect()
}

/// How much of the contrast of each tile is left: the slope of the mosaic's lightness over the tile's,
/// in CIELAB. Tiles that hardly have contrast are left out.
pub(super) fn contrasts(placed: &Placed<'_>, scaled: &[RgbImage]) -> Vec<f32> {
    let side = placed.mosaic.width() / placed.columns;
    let own: Vec<Vec<f32>> = scaled.iter().map(lightness).collect();
    (placed.tiles.iter().enumerate())
        .filter_map(|(at, tile)| {
            let (row, column) = (at as u32 / placed.columns, at as u32 % placed.columns);
            let part = crop_imm(placed.mosaic, column * side, row * side, side, side).to_image();
            slope(&own[*tile as usize], &lightness(&part))
        })
        .collect()
}

fn slope(x: &[f32], y: &[f32]) -> Option<f32> {
    let mean = |all: &[f32]| all.iter().sum::<f32>() / all.len() as f32;
    let (mx, my) = (mean(x), mean(y));
    let covariance: f32 = x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum();
    let variance: f32 = x.iter().map(|x| (x - mx) * (x - mx)).sum();
    (variance > 4.0 * x.len() as f32).then(|| covariance / variance)
}

/// The share of places that touch another place of the same tile.
pub(super) fn repeats(placed: &Placed<'_>) -> f32 {
    let at = |row: i32, column: i32| {
        let inside =
            (0..placed.rows as i32).contains(&row) && (0..placed.columns as i32).contains(&column);
        inside.then(|| placed.tiles[(row * placed.columns as i32 + column) as usize])
    };
    let touching =
        (0..placed.rows as i32).flat_map(|row| (0..placed.columns as i32).map(move |c| (row, c)));
    let repeated = touching.filter(|&(row, column)| {
        let around = (-1..=1)
            .flat_map(|r| (-1..=1).map(move |c| (r, c)))
            .filter(|step| *step != (0, 0));
        around
            .into_iter()
            .any(|(r, c)| at(row + r, column + c) == at(row, column))
    });
    repeated.count() as f32 / placed.tiles.len() as f32
}

/// The amplitude of the strongest pattern of rows, and of columns, in the spectrum of the difference in
/// CIELAB lightness. A wave is a pattern if its power is ten times the mean of those of the same length
/// that are not parallel to it, which rarely happens by chance.
pub(super) fn patterns(source: &RgbImage, placed: &Placed<'_>) -> (f32, f32) {
    let light = |image: &RgbImage| -> Vec<f32> {
        let light = averages(image, Area::whole(image), placed.columns, placed.rows);
        light
            .into_iter()
            .map(|light: LinSrgb| Lab::<palette::white_point::D65>::from_color(light).l)
            .collect()
    };
    let difference: Vec<f32> = (light(source).iter().zip(light(placed.mosaic)))
        .map(|(a, b)| b - a)
        .collect();
    let (columns, rows) = (placed.columns as usize, placed.rows as usize);
    let turned: Vec<f32> = (0..columns * rows)
        .map(|at| difference[at % rows * columns + at / rows])
        .collect();
    (strongest(&difference, columns), strongest(&turned, rows))
}

/// Of a picture with `width` columns, the strongest pattern of rows that is at most 8 rows long.
fn strongest(picture: &[f32], width: usize) -> f32 {
    let rows = picture.len() / width;
    let across = width / 4;
    // The complex amplitude of each row at each of some frequencies across.
    let amplitudes: Vec<Vec<(f32, f32)>> = picture
        .chunks_exact(width)
        .map(|row| {
            (0..across)
                .map(|wave| transform(row.iter().map(|value| (*value, 0.0)), wave, width))
                .collect()
        })
        .collect();
    (rows / 8..=rows / 2)
        .map(|wave| {
            let power = |across: usize| {
                let (re, im) = transform(amplitudes.iter().map(|row| row[across]), wave, rows);
                re * re + im * im
            };
            let others = (1..across).map(power).sum::<f32>() / (across - 1) as f32;
            let is_pattern = power(0) > 10.0 * others;
            if is_pattern {
                2.0 * power(0).sqrt() / picture.len() as f32
            } else {
                0.0
            }
        })
        .fold(0.0, f32::max)
}

fn transform(values: impl Iterator<Item = (f32, f32)>, wave: usize, length: usize) -> (f32, f32) {
    values.enumerate().fold((0.0, 0.0), |sum, (at, (re, im))| {
        let (sin, cos) = (-TAU * (wave * at % length) as f32 / length as f32).sin_cos();
        (sum.0 + re * cos - im * sin, sum.1 + re * sin + im * cos)
    })
}
