use std::fs;
use std::path::Path;

use super::{Report, Table, plot};
use crate::Outcome;

/// The page of all tables.
const PAGE: &str = "benchmark-figures.md";
/// A page that has some tables, where its marks are.
const PAPERS: &str = "seeds.md";
const PLOTS: &str = "plots";

/// Writes the plots of a run into the folder, and its tables into the pages of figures there: each between
/// its marks, or at the end of the page of all tables if it has none. The rest of the pages stays as it is.
pub(crate) fn write_docs(report: &Report, docs: &Path) -> Outcome<()> {
    let read = |name| {
        let read = fs::read_to_string(docs.join(name));
        read.map_err(|error| format!("{}: {error}", docs.join(name).display()))
    };
    let (mut page, mut papers) = (read(PAGE)?, read(PAPERS)?);
    fs::create_dir_all(docs.join(PLOTS))?;
    for table in &report.tables {
        let plot = format!("{PLOTS}/{}.svg", table.name);
        let plotted = plot::draw(table, &docs.join(&plot))?;
        let plot = plotted.then_some(plot.as_str());
        if papers.contains(&marks(table).0) {
            papers = placed(&papers, table, &part(report, table, None))?;
        }
        page = placed(&page, table, &part(report, table, plot))?;
    }
    fs::write(docs.join(PAPERS), papers)?;
    fs::write(docs.join(PAGE), page)?;
    Ok(())
}

fn part(report: &Report, table: &Table, plot: Option<&str>) -> String {
    let circumstances = report.circumstances();
    let title = &table.title;
    let plot = plot.map_or(String::new(), |plot| format!("![{title}]({plot})\n\n"));
    format!("{circumstances}\n\n{plot}{table}")
}

fn marks(table: &Table) -> (String, String) {
    let name = &table.name;
    let start = format!("<!-- figures: {name}, written by cargo xtask bench --write-docs -->\n");
    (start, format!("<!-- end of figures: {name} -->\n"))
}

/// The page with the part between the table's marks.
fn placed(page: &str, table: &Table, part: &str) -> Outcome<String> {
    let (start, end) = marks(table);
    let marked = format!("{start}\n{part}\n{end}");
    let Some((before, rest)) = page.split_once(&start) else {
        let title = &table.title;
        return Ok(format!("{}\n\n### {title}\n\n{marked}", page.trim_end()));
    };
    let (_, after) = rest
        .split_once(&end)
        .ok_or_else(|| format!("a page has no `{}` after `{}`", end.trim(), start.trim()))?;
    Ok(format!("{before}{marked}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("a command".to_owned(), 1, Path::new("."));
        report.tables.push(table(11_111.0));
        report
    }

    fn table(figure: f64) -> Table {
        let mut table = Table::new("one", "The first", &["ours"]);
        table.add("submit", 32, "ours", figure);
        table
    }

    #[test]
    fn only_the_part_between_the_marks_is_replaced() {
        let docs = tempfile::tempdir().expect("a folder");
        let page = docs.path().join(PAGE);
        fs::write(&page, "# Benchmarks\n\nBefore.\n").expect("write");
        let (mut report, papers) = (report(), docs.path().join(PAPERS));
        let (start, end) = marks(&report.tables[0]);
        fs::write(&papers, format!("Papers.\n\n{start}\n{end}\nAfter.\n")).expect("write");

        write_docs(&report, docs.path()).expect("add");
        let mut written = fs::read_to_string(&page).expect("read");
        assert!(written.starts_with("# Benchmarks\n\nBefore.\n\n### The first\n\n<!-- "));
        assert!(written.contains("| submit | 32 | ours | 11111 (11111 to 11111) |  |"));
        written.push_str("\nAfter.\n");
        fs::write(&page, &written).expect("write");

        report.tables = vec![table(22_222.0)];
        write_docs(&report, docs.path()).expect("replace");
        let replaced = fs::read_to_string(&page).expect("read");
        assert_eq!(replaced, written.replace("11111", "22222"));
        let papers = fs::read_to_string(&papers).expect("read");
        assert!(papers.starts_with("Papers.") && papers.ends_with("After.\n"));
        assert!(papers.contains("22222") && !papers.contains("11111"));
        let plot = docs.path().join("plots/one.svg");
        let plot = fs::read_to_string(plot).expect("a plot");
        assert!(
            plot.contains("submit, tasks: 32") && plot.contains("22222"),
            "{plot}"
        );
    }

    #[test]
    fn a_mark_without_an_end_is_an_error() {
        let report = report();
        let page = marks(&report.tables[0]).0;
        let error = placed(&page, &report.tables[0], "").expect_err("no end");
        assert!(error.to_string().contains("end of figures: one"), "{error}");
    }
}
