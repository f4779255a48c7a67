//! What has become heavier or lighter since the page was written.

use std::fmt;

use super::page::{Entry, Page, Row};

/// The differences between what is and what the committed page says, one a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    pub(crate) heavier: Vec<String>,
    pub(crate) lighter: Vec<String>,
}

impl Differences {
    pub(crate) fn between(committed: &Page, now: &Page) -> Self {
        let mut found = Self::default();
        for row in &now.rows {
            let before = committed.rows.iter().find(|before| before.part == row.part);
            found.compare_row(before, row);
        }
        let is_gone = |before: &&Row| now.rows.iter().all(|row| row.part != before.part);
        let gone = committed.rows.iter().filter(is_gone);
        (found.lighter).extend(gone.map(|row| format!("{}: {}, now gone", row.part, row.weight)));
        for list in &now.lists {
            let mut before = committed.lists.iter();
            let before = before.find(|before| before.title == list.title);
            let before = before.map_or(&[][..], |before| &before.entries);
            let line = |entry: &Entry| format!("{}: {entry}", list.title);
            let added = list
                .entries
                .iter()
                .filter(|entry| !is_within(entry, before));
            found.heavier.extend(added.map(line));
            let gone = before
                .iter()
                .filter(|before| !list.entries.contains(before));
            found.lighter.extend(gone.map(line));
        }
        found
    }

    fn compare_row(&mut self, before: Option<&Row>, now: &Row) {
        let cells = [
            (
                now.unit.as_str(),
                before.map(|row| row.weight),
                Some(now.weight),
            ),
            ("files", before.and_then(|row| row.files), now.files),
            ("public names", before.and_then(|row| row.names), now.names),
        ];
        for (unit, before, now_is) in cells {
            let part = &now.part;
            match (before, now_is) {
                (before, Some(now)) if now > before.unwrap_or(0) => {
                    let before = before.unwrap_or(0);
                    (self.heavier).push(format!("{part}: {before} {unit} before, now {now}"));
                }
                (Some(before), now) if now.is_none_or(|now| now < before) => {
                    let now = now.unwrap_or(0);
                    (self.lighter).push(format!("{part}: {before} {unit} before, now {now}"));
                }
                _ => {}
            }
        }
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = |title: &str, lines: &[String]| {
            if lines.is_empty() {
                return Ok(());
            }
            writeln!(f, "\n{title}:")?;
            lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
        };
        list("lighter than docs/weight.md", &self.lighter)?;
        list("heavier than docs/weight.md", &self.heavier)?;
        if !self.heavier.is_empty() {
            writeln!(
                f,
                "\nmake it lighter, or run `cargo xtask weigh --write` and say in the commit's message why"
            )
        } else if !self.lighter.is_empty() {
            writeln!(
                f,
                "\nrun `cargo xtask weigh --write`, so that it stays that light"
            )
        } else {
            Ok(())
        }
    }
}

/// Returns whether an entry has at most the members that one of its key had before.
fn is_within(now: &Entry, before: &[Entry]) -> bool {
    let mut same = before.iter().filter(|before| before.key == now.key);
    same.any(|before| now.members.is_subset(&before.members))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[&str], entries: &[&str]) -> Page {
        let head = "| part | weight | unit | files | public names |\n|---|\n";
        let (rows, entries) = (rows.join("\n"), entries.join("\n"));
        Page::parse(&format!("{head}{rows}\n\n## circles\n\n{entries}\n"))
    }

    #[test]
    fn each_figure_may_only_fall_and_lists_only_lose_entries() {
        let committed = page(
            &["| `a` | 10 | lines | 2 | 5 |", "| `b` | 7 | lines | 1 |  |"],
            &["- `a`: `w`, `x`, `y`, `z`", "- `b`: `v`"],
        );
        assert_eq!(
            Differences::between(&committed, &committed),
            Differences::default()
        );
        let now = page(
            &["| `a` | 9 | lines | 3 | 5 |", "| `c` | 0 | lines | 1 |  |"],
            &["- `a`: `w`, `x`, `y`", "- `b`: `u`"],
        );
        let found = Differences::between(&committed, &now);
        assert_eq!(
            found.heavier,
            [
                "`a`: 2 files before, now 3",
                "`c`: 0 files before, now 1",
                "circles: `b`: `u`",
            ]
        );
        assert_eq!(
            found.lighter,
            [
                "`a`: 10 lines before, now 9",
                "`b`: 7, now gone",
                "circles: `a`: `w`, `x`, `y`, `z`",
                "circles: `b`: `v`",
            ]
        );
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let page = page(
            &["| `a` | 10 | lines | 2 |  |"],
            &["- `a`: `w`, `x`", "- `b`"],
        );
        assert_eq!(Page::parse(&page.to_string()), page);
        assert_eq!((page.rows.len(), page.lists[0].entries.len()), (1, 2));
    }
}
