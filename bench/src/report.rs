use std::collections::BTreeMap;
use std::fmt;

/// The API that a figure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Bare,
}

impl Whose {
    /// Both, in an order that alternates from round to round.
    pub(crate) fn in_turn(round: u32) -> [Self; 2] {
        match round % 2 {
            0 => [Self::Ours, Self::Bare],
            _ => [Self::Bare, Self::Ours],
        }
    }
}

/// One figure for each way to use a queue.
pub(crate) struct Figures {
    submit: f64,
    accept: f64,
    /// For submit and accept together.
    both: f64,
    listen: f64,
}

impl Figures {
    /// From messages per second.
    pub(crate) fn rates(submit: f64, accept: f64, listen: f64) -> Self {
        Self {
            submit,
            accept,
            both: 1.0 / (1.0 / submit + 1.0 / accept),
            listen,
        }
    }

    /// From costs per message.
    pub(crate) fn costs(submit: f64, accept: f64, listen: f64) -> Self {
        Self {
            submit,
            accept,
            both: submit + accept,
            listen,
        }
    }
}

/// The figures of all rounds: ours and those of the bare engine.
pub(crate) struct Table {
    title: String,
    /// The headings of ours and of the bare engine.
    columns: [&'static str; 2],
    decimals: usize,
    rows: BTreeMap<(&'static str, u32), Row>,
}

#[derive(Default)]
struct Row {
    ours: Vec<f64>,
    bare: Vec<f64>,
}

impl Table {
    pub(crate) fn new(title: String, columns: [&'static str; 2], decimals: usize) -> Self {
        Self {
            title,
            columns,
            decimals,
            rows: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, what: &'static str, tasks: u32, whose: Whose, figure: f64) {
        let row = self.rows.entry((what, tasks)).or_default();
        match whose {
            Whose::Ours => row.ours.push(figure),
            Whose::Bare => row.bare.push(figure),
        }
    }

    pub(crate) fn add_all(&mut self, tasks: u32, whose: Whose, figures: &Figures) {
        self.add("submit", tasks, whose, figures.submit);
        self.add("accept + complete", tasks, whose, figures.accept);
        self.add("submit + accept + complete", tasks, whose, figures.both);
        self.add("listener", tasks, whose, figures.listen);
    }

    fn spread(&self, figures: &[f64]) -> String {
        let decimals = self.decimals;
        let lowest = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = figures.iter().copied().fold(0.0, f64::max);
        format!(
            "{:.decimals$} ({lowest:.decimals$} to {highest:.decimals$})",
            median(figures)
        )
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.values().any(|row| median(&row.ours).is_nan()) {
            return writeln!(f, "\n{}: unknown on this system", self.title);
        }
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        writeln!(f, "\n{}", self.title)?;
        writeln!(f, "{cores} cores; median (lowest to highest)\n")?;
        let [ours, bare] = self.columns;
        writeln!(f, "| what | tasks | {ours} | {bare} | ratio |")?;
        writeln!(f, "|---|---:|---:|---:|---:|")?;
        for ((what, tasks), row) in &self.rows {
            let ratios: Vec<f64> = row.ours.iter().zip(&row.bare).map(|(o, b)| o / b).collect();
            writeln!(
                f,
                "| {what} | {tasks} | {} | {} | {:.2} |",
                self.spread(&row.ours),
                self.spread(&row.bare),
                median(&ratios)
            )?;
        }
        Ok(())
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
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
        assert_eq!(Figures::rates(300.0, 600.0, 1.0).both, 200.0);
        assert_eq!(Figures::costs(1.0, 2.0, 1.0).both, 3.0);
    }

    #[test]
    fn an_unknown_figure_is_not_shown_as_a_table() {
        let mut table = Table::new("a title".to_owned(), ["ours", "bare"], 1);
        table.add("submit", 32, Whose::Ours, f64::NAN);
        assert_eq!(table.to_string(), "\na title: unknown on this system\n");
    }

    #[test]
    fn a_row_shows_the_spread_and_the_median_of_the_ratios() {
        let mut table = Table::new("a title".to_owned(), ["ours", "bare"], 1);
        for (ours, bare) in [(1.0, 2.0), (3.0, 3.0), (2.0, 8.0)] {
            table.add("submit", 32, Whose::Ours, ours);
            table.add("submit", 32, Whose::Bare, bare);
        }
        let shown = table.to_string();
        let row = "| submit | 32 | 2.0 (1.0 to 3.0) | 3.0 (2.0 to 8.0) | 0.50 |";
        assert!(shown.contains(row), "{shown}");
    }
}
