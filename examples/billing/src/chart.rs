//! A chart of a run: depth, workers and latency over time, with the kills.

use std::error::Error;
use std::path::Path;

use clap::ValueEnum as _;
use plotters::prelude::*;

use crate::Kind;

const BLUE: RGBColor = RGBColor(0, 95, 170);
const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(228, 228, 228);

/// By kind of process.
const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 140, 140),
    RGBColor(226, 100, 60),
    RGBColor(190, 140, 0),
    RGBColor(140, 0, 140),
];

type Points = Vec<(f64, f64)>;

/// What a chart shows. Times are seconds since the begin.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// Records that were submitted and are not priced.
    pub(crate) waiting: Points,
    /// Running workers, as the agent tells.
    pub(crate) workers: Points,
    /// When invoices were written, and the seconds that they took.
    pub(crate) latencies: Points,
    /// When which kind of process was killed.
    pub(crate) kills: Vec<(f64, Kind)>,
}

/// Draws a chart as SVG.
pub(crate) fn draw(course: &Course, title: &str, path: &Path) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, (1_000, 740)).into_drawing_area();
    area.fill(&WHITE)?;
    let (header, panels) = area.split_vertically(66);
    let style = |size: i32| ("sans-serif", size).into_text_style(&area);
    header.draw_text(title, &style(22), (84, 12))?;
    header.draw_text("killed:", &style(15), (84, 44))?;
    for (kind, x) in Kind::value_variants().iter().zip((150..).step_by(110)) {
        let line = vec![(x, 42), (x, 60)];
        header.draw(&PathElement::new(
            line,
            COLOURS[*kind as usize].stroke_width(3),
        ))?;
        header.draw_text(&kind.name(), &style(15), (x + 9, 44))?;
    }
    let end = course.waiting.last().map_or(1.0, |last| last.0);
    let all = [&course.waiting, &course.workers, &course.latencies];
    let names = ["records waiting", "workers", "seconds to invoice"];
    for (at, area) in panels.split_evenly((3, 1)).iter().enumerate() {
        let points = all[at].iter().copied();
        let top = points.clone().map(|point| point.1).fold(1.0, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .margin_left(10)
            .margin_right(20)
            .x_label_area_size(36)
            .y_label_area_size(84)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(WHITE)
            .bold_line_style(GRID)
            .y_labels(6);
        mesh.label_style(style(14)).axis_desc_style(style(14));
        let whole = |value: &f64| format!("{value:.0}");
        mesh.x_label_formatter(&whole).y_label_formatter(&whole);
        mesh.x_desc("seconds")
            .y_desc(names[at])
            .axis_style(INK)
            .draw()?;
        let kills = course.kills.iter().map(|(at, kind)| {
            let line = vec![(*at, 0.0), (*at, top)];
            PathElement::new(line, COLOURS[*kind as usize].mix(0.8).stroke_width(1))
        });
        chart.draw_series(kills)?;
        let dots = |at| Circle::new(at, 2, BLUE.mix(0.6).filled());
        if at == 2 {
            chart.draw_series(points.map(dots))?;
            continue;
        }
        // Each value lasts until the next.
        let steps = all[at].windows(2);
        let steps = steps.flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
        let mut line: Points = steps.chain(points.last()).collect();
        chart.draw_series(LineSeries::new(line.clone(), BLUE.stroke_width(2)))?;
        let first = line.first().map_or(0.0, |first| first.0);
        line.extend([(end, 0.0), (first, 0.0)]);
        chart.draw_series([Polygon::new(line, BLUE.mix(0.15))])?;
    }
    Ok(area.present()?)
}
