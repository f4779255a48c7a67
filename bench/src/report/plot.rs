use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Table;
use super::curves;
use super::table::{median, range};
use crate::Outcome;

/// Pixels.
const WIDTH: i32 = 900;
const TITLE: i32 = 34;
const HEADING: i32 = 26;
const BAR: i32 = 22;
/// Where the bars start, and the longest one ends.
const LEFT: i32 = 520;
const RIGHT: i32 = 810;

const OURS: RGBColor = RGBColor(0, 95, 170);
const OTHERS: RGBColor = RGBColor(150, 150, 150);

/// Draws a table: its curves, or else the medians as bars, with the range of the rounds as a line; each row has its own
/// scale. Returns false, and draws nothing, if there are no figures.
pub(super) fn draw(table: &Table, path: &Path) -> Outcome<bool> {
    if table.rows.is_empty() {
        return Ok(false);
    }
    if !table.curves.is_empty() {
        curves::draw(table, path)?;
        return Ok(true);
    }
    let rows = table.rows.iter();
    let height: i32 = rows
        .map(|row| HEADING + BAR * row.figures.len() as i32)
        .sum();
    let height = TITLE + height + BAR / 2;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |text: &str, size: i32, at: (i32, i32), side: HPos| {
        let style = ("sans-serif", size).into_font().color(&BLACK);
        let style = style.pos(Pos::new(side, VPos::Center));
        area.draw(&Text::new(text.to_owned(), at, style))
    };
    let title = format!("{}: {}", table.title, table.unit);
    text(&title, 17, (12, TITLE / 2 + 2), HPos::Left)?;
    let mut y = TITLE;
    for row in &table.rows {
        text(&table.heading(row), 14, (12, y + HEADING / 2), HPos::Left)?;
        y += HEADING;
        let figures = row.figures.values().flatten().copied();
        let longest = figures.fold(f64::MIN_POSITIVE, f64::max);
        let x = |figure: f64| LEFT + (figure / longest * f64::from(RIGHT - LEFT)) as i32;
        for (side, figures) in table.sides_of(row) {
            let middle = y + BAR / 2;
            text(side, 12, (LEFT - 8, middle), HPos::Right)?;
            let colour = if table.is_ours(side) { OURS } else { OTHERS };
            let bar = [(LEFT, y + 3), (x(median(figures)), y + BAR - 3)];
            area.draw(&Rectangle::new(bar, colour.filled()))?;
            let (lowest, highest) = range(figures);
            let spread = vec![(x(lowest), middle), (x(highest), middle)];
            area.draw(&PathElement::new(spread, BLACK))?;
            let figure = table.figure(median(figures));
            text(&figure, 12, (x(highest) + 6, middle), HPos::Left)?;
            y += BAR;
        }
    }
    area.present()?;
    Ok(true)
}
