use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::curves::Curve;

/// The API that a figure belongs to, where there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Bare,
}

impl Whose {
    /// Both APIs, in an order that alternates from round to round.
    pub(crate) fn in_turn(round: u32) -> [Self; 2] {
        in_turn(round, [Self::Ours, Self::Bare])
    }
}

/// What is measured in a round, in an order that alternates from round to round.
pub(crate) fn in_turn<S: AsMut<[T]>, T>(round: u32, mut what: S) -> S {
    if round % 2 == 1 {
        what.as_mut().reverse();
    }
    what
}

/// One figure for each way to use a queue.
pub(crate) struct Figures {
    submit: f64,
    accept: f64,
    /// For submit and accept together.
    both: f64,
    listen: Option<f64>,
}

impl Figures {
    /// Figures from messages per second.
    pub(crate) fn rates(submit: f64, accept: f64, listen: Option<f64>) -> Self {
        Self {
            submit,
            accept,
            both: 1.0 / (1.0 / submit + 1.0 / accept),
            listen,
        }
    }

    /// Figures from costs per message.
    pub(crate) fn costs(submit: f64, accept: f64, listen: f64) -> Self {
        Self {
            submit,
            accept,
            both: submit + accept,
            listen: Some(listen),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// The figures of all rounds, of several sides that do the same work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Identifies the table in files: lower-case letters, digits and dashes.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) better: Better,
    /// The heading of the second column.
    size: String,
    decimals: usize,
    sides: Vec<Side>,
    pub(crate) rows: Vec<Row>,
    /// What was measured over time, which the plot then shows in place of the rows.
    #[serde(default)]
    pub(crate) curves: Vec<Curve>,
    /// What is missing, and why.
    notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Side {
    name: String,
    /// The side of ours to compare this side with; none for ours.
    ours: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) size: u32,
    /// The figures of each side, in the order of the rounds.
    pub(crate) figures: BTreeMap<String, Vec<f64>>,
}

impl Table {
    /// A table of rates, where more is better. The first side is ours; the others are compared with it.
    pub(crate) fn new(name: &str, title: impl Into<String>, sides: &[&str]) -> Self {
        let mut table = Self {
            name: name.to_owned(),
            title: title.into(),
            unit: "messages per second".to_owned(),
            better: Better::Higher,
            size: "tasks".to_owned(),
            decimals: 0,
            sides: Vec::new(),
            rows: Vec::new(),
            curves: Vec::new(),
            notes: Vec::new(),
        };
        for side in sides {
            table.add_side(side, sides.first().filter(|ours| *ours != side).copied());
        }
        table
    }

    /// Adds a side, and which of ours it is compared with.
    pub(crate) fn add_side(&mut self, name: &str, ours: Option<&str>) {
        self.sides.push(Side {
            name: name.to_owned(),
            ours: ours.map(str::to_owned),
        });
    }

    /// Makes this a table of costs, of which less is better.
    pub(crate) fn costs(mut self, unit: &str, decimals: usize) -> Self {
        self.unit = unit.to_owned();
        self.decimals = decimals;
        self.better = Better::Lower;
        self
    }

    /// Sets the heading of the column after the first.
    pub(crate) fn by(mut self, size: &str) -> Self {
        self.size = size.to_owned();
        self
    }

    /// Adds a figure, unless it is unknown.
    pub(crate) fn add(&mut self, what: &str, size: u32, side: &str, figure: f64) {
        debug_assert!(self.sides.iter().any(|known| known.name == side), "{side}");
        if !figure.is_finite() {
            return;
        }
        let same = |row: &Row| row.what == what && row.size == size;
        let place = self.rows.iter().position(same).unwrap_or_else(|| {
            // By size, and within a size in the order in which they are first measured.
            let place = self.rows.partition_point(|row| row.size <= size);
            let what = what.to_owned();
            let figures = BTreeMap::new();
            self.rows.insert(
                place,
                Row {
                    what,
                    size,
                    figures,
                },
            );
            place
        });
        let figures = &mut self.rows[place].figures;
        figures.entry(side.to_owned()).or_default().push(figure);
    }

    pub(crate) fn add_all(&mut self, tasks: u32, side: &str, figures: &Figures) {
        self.add("submit", tasks, side, figures.submit);
        self.add("accept + complete", tasks, side, figures.accept);
        self.add("submit + accept + complete", tasks, side, figures.both);
        if let Some(listen) = figures.listen {
            self.add("listener", tasks, side, listen);
        }
    }

    /// Adds what is missing, and why.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// A row's sides that have figures, in the order of the table, with their figures.
    pub(crate) fn sides_of<'a>(
        &'a self,
        row: &'a Row,
    ) -> impl Iterator<Item = (&'a str, &'a [f64])> {
        self.sides.iter().filter_map(|side| {
            let figures = row.figures.get(&side.name)?;
            Some((side.name.as_str(), figures.as_slice()))
        })
    }

    pub(crate) fn is_ours(&self, side: &str) -> bool {
        let ours = |known: &Side| known.name == side && known.ours.is_none();
        self.sides.iter().any(ours)
    }

    pub(crate) fn figure(&self, figure: f64) -> String {
        let decimals = self.decimals;
        format!("{figure:.decimals$}")
    }

    /// The heading of a row, such as "submit, tasks: 32".
    pub(crate) fn heading(&self, row: &Row) -> String {
        format!("{}, {}: {}", row.what, self.size, row.size)
    }

    /// The median of the ratios of ours to this side's, round by round.
    fn ratio(&self, row: &Row, side: &str) -> Option<f64> {
        let ours = self.sides.iter().find(|known| known.name == side)?;
        let ours = row.figures.get(ours.ours.as_ref()?)?;
        let its = row.figures.get(side)?;
        let ratios: Vec<f64> = ours.iter().zip(its).map(|(o, i)| o / i).collect();
        Some(median(&ratios))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "LEFT OUT: {note}\n")?;
        }
        if self.rows.is_empty() {
            return writeln!(f, "Unknown on this system.");
        }
        let (size, unit) = (&self.size, &self.unit);
        writeln!(f, "| what | {size} | side | {unit} | ours / it |")?;
        writeln!(f, "|---|---:|---|---:|---:|")?;
        for row in &self.rows {
            for (side, figures) in self.sides_of(row) {
                let (lowest, highest) = range(figures);
                let spread = [median(figures), lowest, highest].map(|figure| self.figure(figure));
                let [median, lowest, highest] = spread;
                let ratio = self.ratio(row, side);
                let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
                let (what, size) = (&row.what, row.size);
                let spread = format!("{median} ({lowest} to {highest})");
                writeln!(f, "| {what} | {size} | {side} | {spread} | {ratio} |")?;
            }
        }
        Ok(())
    }
}

/// The upper of the two middle values if their number is even.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The lowest and the highest value.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (lowest, highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn submit_and_accept_add_up() {
        assert_eq!(Figures::rates(300.0, 600.0, None).both, 200.0);
        assert_eq!(Figures::costs(1.0, 2.0, 1.0).both, 3.0);
    }

    #[test]
    fn the_order_alternates() {
        assert_eq!(in_turn(1, [1, 2, 3]), [3, 2, 1]);
        assert_eq!(in_turn(2, [1, 2, 3]), [1, 2, 3]);
    }

    #[test]
    fn an_unknown_figure_is_not_shown_as_a_table() {
        let mut table = Table::new("t", "a title", &["ours", "bare"]);
        table.add("submit", 32, "ours", f64::NAN);
        assert_eq!(table.to_string(), "Unknown on this system.\n");
    }

    #[test]
    fn a_row_shows_the_spread_and_the_median_of_the_ratios() {
        let mut table = Table::new("t", "a title", &["ours", "bare"]).costs("seconds", 1);
        for (ours, bare) in [(1.0, 2.0), (3.0, 3.0), (2.0, 8.0)] {
            table.add("submit", 32, "bare", bare);
            table.add("submit", 32, "ours", ours);
        }
        let shown = table.to_string();
        let rows = "| submit | 32 | ours | 2.0 (1.0 to 3.0) |  |\n\
                    | submit | 32 | bare | 3.0 (2.0 to 8.0) | 0.50 |\n";
        assert!(shown.ends_with(rows), "{shown}");
    }

    #[test]
    fn rows_are_sorted_by_size() {
        let mut table = Table::new("t", "a title", &["ours"]);
        for (what, size) in [("submit", 32), ("submit", 1), ("accept", 32), ("accept", 1)] {
            table.add(what, size, "ours", 1.0);
        }
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| (&*row.what, row.size))
            .collect();
        let sorted = [("submit", 1), ("accept", 1), ("submit", 32), ("accept", 32)];
        assert_eq!(rows, sorted);
    }

    #[test]
    fn each_side_is_compared_with_its_own_of_ours() {
        let mut table = Table::new("t", "a title", &["full"]);
        table.add_side("normal", None);
        table.add_side("peer", Some("normal"));
        for (side, figure) in [("full", 1.0), ("normal", 6.0), ("peer", 2.0)] {
            table.add("submit", 1, side, figure);
        }
        let shown = table.to_string();
        assert!(shown.contains("| peer | 2 (2 to 2) | 3.00 |"), "{shown}");
        assert!(shown.contains("| normal | 6 (6 to 6) |  |"), "{shown}");
    }
}
