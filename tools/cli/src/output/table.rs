use std::fmt;

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Row, presets};

/// A table for people: as wide as the terminal, one line a row.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    pub(crate) fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(match table.width() {
            // The terminal does not know how wide it is.
            Some(0) => ContentArrangement::Disabled,
            _ => ContentArrangement::Dynamic,
        });
        table.set_header(one_line(header.into_iter().map(Cell::new)));
        Self(table)
    }

    /// Adds a row, whose cells must have been [escaped](super::escape).
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.0.add_row(one_line(cells));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns a row whose cells are cut off where the terminal is too narrow for them.
fn one_line(cells: impl IntoIterator<Item = Cell>) -> Row {
    let mut row = Row::from(cells.into_iter().collect::<Vec<_>>());
    row.max_height(1);
    row
}

pub(crate) fn text(text: impl ToString) -> Cell {
    Cell::new(text)
}

pub(crate) fn number(number: impl ToString) -> Cell {
    Cell::new(number).set_alignment(CellAlignment::Right)
}

/// A number that asks for attention.
pub(crate) fn alarming(number: impl ToString) -> Cell {
    self::number(number).fg(Color::Red)
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
