use std::fmt::Write;

use super::Report;
use super::table::{Better, Row, Table, median, range};

/// Returns a table of what changed since an earlier run, with a mark where the ranges of the rounds do not overlap.
pub(crate) fn compare(now: &Report, earlier: &Report) -> String {
    let mut text = format!("Compared with {}\n", earlier.circumstances());
    for table in &now.tables {
        let Some(before) = earlier.tables.iter().find(|old| old.name == table.name) else {
            let _ = writeln!(text, "\n{}: not in the earlier run", table.title);
            continue;
        };
        let (title, unit) = (&table.title, &table.unit);
        let _ = writeln!(text, "\n{title}: {unit}\n");
        text.push_str("| what | side | earlier | now | change | |\n|---|---|---:|---:|---:|---|\n");
        for row in &table.rows {
            for (side, figures) in table.sides_of(row) {
                let old = earlier_figures(before, row, side);
                text.push_str(&line(table, row, side, old, figures));
            }
        }
    }
    text
}

fn earlier_figures<'a>(before: &'a Table, row: &Row, side: &str) -> Option<&'a [f64]> {
    let same = |old: &&Row| old.what == row.what && old.size == row.size;
    let old = before.rows.iter().find(same)?.figures.get(side)?;
    Some(old.as_slice())
}

fn line(table: &Table, row: &Row, side: &str, old: Option<&[f64]>, new: &[f64]) -> String {
    let heading = table.heading(row);
    let now = table.figure(median(new));
    let Some(old) = old else {
        return format!("| {heading} | {side} | – | {now} | | not in the earlier run |\n");
    };
    let change = (median(new) / median(old) - 1.0) * 100.0;
    let earlier = table.figure(median(old));
    let verdict = verdict(table.better, old, new);
    format!("| {heading} | {side} | {earlier} | {now} | {change:+.1} % | {verdict} |\n")
}

/// Better or worse if all of several rounds were, and nothing otherwise.
fn verdict(better: Better, old: &[f64], new: &[f64]) -> &'static str {
    if old.len() < 2 || new.len() < 2 {
        return "";
    }
    let ((old_low, old_high), (new_low, new_high)) = (range(old), range(new));
    let (higher, lower) = (new_low > old_high, new_high < old_low);
    match (better, higher, lower) {
        (Better::Higher, true, _) | (Better::Lower, _, true) => "better",
        (Better::Lower, true, _) | (Better::Higher, _, true) => "worse",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn report(figures: &[f64]) -> Report {
        let mut table = Table::new("t", "a title", &["ours"]).costs("seconds", 1);
        for figure in figures {
            table.add("submit", 32, "ours", *figure);
        }
        let mut report = Report::new("a command".to_owned(), 3, Path::new("."));
        report.tables.push(table);
        report
    }

    #[test]
    fn a_change_is_marked_if_no_round_overlaps() {
        let earlier = report(&[10.0, 11.0, 12.0]);
        for (now, expected) in [
            ([20.0, 22.0, 24.0], "| 11.0 | 22.0 | +100.0 % | worse |"),
            ([5.0, 5.5, 6.0], "| 11.0 | 5.5 | -50.0 % | better |"),
            ([9.0, 10.0, 10.5], "| 11.0 | 10.0 | -9.1 % |  |"),
        ] {
            let shown = compare(&report(&now), &earlier);
            assert!(shown.contains(expected), "{shown}");
        }
    }

    #[test]
    fn a_single_round_proves_nothing() {
        let shown = compare(&report(&[20.0]), &report(&[10.0]));
        assert!(shown.contains("| +100.0 % |  |"), "{shown}");
    }

    #[test]
    fn what_is_new_is_not_compared() {
        let now = report(&[1.0]);
        let mut earlier = report(&[]);
        assert!(compare(&now, &earlier).contains("| – | 1.0 | | not in the earlier run |"));
        earlier.tables.clear();
        assert!(compare(&now, &earlier).contains("a title: not in the earlier run"));
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("run.json");
        let written = report(&[1.0, 0.1 + 0.2]);
        written.write(&path).expect("write");
        let read = Report::read(&path).expect("read");
        assert_eq!(read.circumstances(), written.circumstances());
        assert_eq!(
            read.tables[0].rows[0].figures,
            written.tables[0].rows[0].figures
        );
    }
}
