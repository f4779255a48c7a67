use std::path::Path;

use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use super::Table;
use crate::Outcome;

/// Pixels.
const WIDTH: u32 = 900;
const HEIGHT: u32 = 240;

const COLOURS: [RGBColor; 2] = [RGBColor(0, 95, 170), RGBColor(200, 90, 0)];

/// What was measured over time: seconds and values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Curve {
    pub(crate) fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            points,
        }
    }

    /// The greatest second and the greatest value.
    fn ends(&self) -> (f64, f64) {
        let least = (f64::MIN_POSITIVE, f64::MIN_POSITIVE);
        let ends = self.points.iter();
        ends.fold(least, |ends, point| {
            (ends.0.max(point.0), ends.1.max(point.1))
        })
    }
}

/// Draws the curves of a table, one below the other on the same scale of time.
pub(super) fn draw(table: &Table, path: &Path) -> Outcome<()> {
    let curves = &table.curves;
    let size = (WIDTH, HEIGHT * curves.len() as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let end = curves.iter().map(|curve| curve.ends().0);
    let end = end.fold(f64::MIN_POSITIVE, f64::max);
    for ((curve, area), colour) in curves
        .iter()
        .zip(area.split_evenly((curves.len(), 1)))
        .zip(COLOURS.iter().cycle())
    {
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption(&curve.name, ("sans-serif", 16))
            .x_label_area_size(30)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..end, 0.0..curve.ends().1 * 1.05)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc("seconds")
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        let line = LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2));
        chart.draw_series(line)?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_curve_has_its_name_and_its_own_scale() {
        let mut table = Table::new("burst", "A burst", &["ours"]);
        table.curves = vec![
            Curve::new("messages", vec![(0.0, 0.0), (1.0, 90_000.0), (2.0, 0.0)]),
            Curve::new("tasks", vec![(0.0, 1.0), (2.0, 16.0)]),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("curves.svg");
        draw(&table, &path).expect("drawn");
        let svg = std::fs::read_to_string(&path).expect("read");
        for text in ["messages", "tasks", "80000", "16", "seconds"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }
}
