//! Features: the look of a square of a picture, as numbers to compare.

use image::RgbImage;
use palette::Oklab;

use super::colour::{self, Linear};
use super::resample::{Area, averages};

/// Cells along each side of a square.
pub(super) const SIDE: usize = 3;

/// The number of dimensions of [`Features`].
pub(super) const DIMENSIONS: usize = SIDE * SIDE * 3;

/// The mean colour of each of 3 × 3 cells in Oklab, row by row. Colours are averaged in linear light
/// and then converted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Features(pub(super) [f32; DIMENSIONS]);

impl Features {
    /// Computes the features of a whole picture, as if it were square.
    pub(super) fn of(image: &RgbImage) -> Self {
        let cells = averages(image, Area::whole(image), SIDE as u32, SIDE as u32);
        Self::from_cells(|cell| cells[cell])
    }

    /// Computes the features of a grid of `columns` × `rows` squares of a picture, row by row.
    pub(super) fn of_grid(image: &RgbImage, columns: u32, rows: u32) -> Vec<Self> {
        let side = SIDE as u32;
        let cells = averages(image, Area::whole(image), columns * side, rows * side);
        let line = columns as usize * SIDE;
        (0..rows as usize)
            .flat_map(|row| (0..columns as usize).map(move |column| (row, column)))
            .map(|(row, column)| {
                let corner = row * SIDE * line + column * SIDE;
                Self::from_cells(|cell| cells[corner + cell / SIDE * line + cell % SIDE])
            })
            .collect()
    }

    /// The colour of the square from afar: the mean of its light.
    pub(super) fn colour(&self) -> Oklab {
        let cells = self.0.chunks_exact(3);
        let light = cells.map(|cell| colour::from_oklab(Oklab::new(cell[0], cell[1], cell[2])));
        colour::to_oklab(colour::mean(light))
    }

    /// The mean of the cells, by which squares are compared.
    pub(super) fn mean(&self) -> Oklab {
        let cells = (SIDE * SIDE) as f32;
        let sum = |channel: usize| self.0.iter().skip(channel).step_by(3).sum::<f32>() / cells;
        Oklab::new(sum(0), sum(1), sum(2))
    }

    /// The difference of every cell from the mean of the cells.
    pub(super) fn detail(&self) -> [f32; DIMENSIONS] {
        let mean = self.mean();
        let mean = [mean.l, mean.a, mean.b];
        std::array::from_fn(|at| self.0[at] - mean[at % 3])
    }

    /// The features as a point whose squared Euclidean distance to another measures how different they
    /// look. The mean hue weighs most, since a wrong hue is visible from afar; then lightness; then the
    /// distribution of hues within the square.
    pub(super) fn weighted(&self) -> [f32; DIMENSIONS] {
        const MEAN: [f32; 3] = [1.0, 1.4, 1.4];
        const DETAIL: [f32; 3] = [1.0, 0.8, 0.8];
        let (mean, detail) = (self.mean(), self.detail());
        let mean = [mean.l, mean.a, mean.b];
        let per_cell = 1.0 / SIDE as f32;
        std::array::from_fn(|at| {
            let channel = at % 3;
            per_cell * (MEAN[channel] * mean[channel] + DETAIL[channel] * detail[at])
        })
    }

    fn from_cells(light: impl Fn(usize) -> Linear) -> Self {
        let mut numbers = [0.0; DIMENSIONS];
        for (cell, slot) in numbers.chunks_exact_mut(3).enumerate() {
            let seen = colour::to_oklab(light(cell));
            slot.copy_from_slice(&[seen.l, seen.a, seen.b]);
        }
        Self(numbers)
    }
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    #[test]
    fn a_grid_describes_each_square_as_it_is_alone() {
        let image = RgbImage::from_fn(24, 12, |x, y| {
            Rgb([x as u8 * 10, y as u8 * 20, (x * y) as u8])
        });
        let grid = Features::of_grid(&image, 4, 2);
        assert_eq!(grid.len(), 8);
        for (index, features) in grid.iter().enumerate() {
            let (column, row) = (index as u32 % 4, index as u32 / 4);
            let square = image::imageops::crop_imm(&image, column * 6, row * 6, 6, 6).to_image();
            let alone = Features::of(&square);
            for (a, b) in features.0.iter().zip(alone.0) {
                assert!((a - b).abs() < 1e-4, "square {index}");
            }
        }
    }
}
