use std::collections::BTreeMap;
use std::fmt;

/// Whose figure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sample {
    Raw,
    Ours,
}

/// The figures of all rounds.
pub(crate) struct Report {
    sqlite: String,
    rows: BTreeMap<(&'static str, u32), Row>,
}

#[derive(Default)]
struct Row {
    raw: Vec<f64>,
    ours: Vec<f64>,
}

impl Report {
    pub(crate) fn new(sqlite: &str) -> Self {
        Self {
            sqlite: sqlite.to_owned(),
            rows: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, what: &'static str, tasks: u32, whose: Sample, rate: f64) {
        let row = self.rows.entry((what, tasks)).or_default();
        match whose {
            Sample::Raw => row.raw.push(rate),
            Sample::Ours => row.ours.push(rate),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        writeln!(
            f,
            "\nSQLite {}, WAL, synchronous=FULL, {cores} cores",
            self.sqlite
        )?;
        writeln!(f, "messages per second, median (lowest to highest)\n")?;
        writeln!(
            f,
            "| what | tasks | ours | bare rusqlite loop | ours / bare |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|")?;
        for ((what, tasks), row) in &self.rows {
            let ratios: Vec<f64> = row.ours.iter().zip(&row.raw).map(|(o, r)| o / r).collect();
            writeln!(
                f,
                "| {what} | {tasks} | {} | {} | {:.2} |",
                spread(&row.ours),
                spread(&row.raw),
                median(&ratios)
            )?;
        }
        Ok(())
    }
}

fn spread(rates: &[f64]) -> String {
    let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    format!("{:.0} ({lowest:.0} to {highest:.0})", median(rates))
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
}
