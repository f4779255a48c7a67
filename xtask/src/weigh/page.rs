//! The page with the table and the lists: how it is written and read.

use std::collections::BTreeSet;
use std::fmt;

/// What the project weighs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) rows: Vec<Row>,
    pub(crate) lists: Vec<List>,
}

/// A row of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) part: String,
    pub(crate) weight: u64,
    pub(crate) unit: String,
    /// The source files.
    pub(crate) files: Option<u64>,
    /// The public names.
    pub(crate) names: Option<u64>,
}

/// What should not be, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) title: String,
    /// What is listed, and why it should not be, which `parse` does not read.
    pub(crate) about: &'static str,
    pub(crate) entries: Vec<Entry>,
}

/// An entry of a list, such as a name and the files that declare it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) members: BTreeSet<String>,
}

impl Entry {
    /// An entry whose members are files or other code.
    pub(crate) fn new<'a>(key: String, members: impl IntoIterator<Item = &'a str>) -> Self {
        let members = members.into_iter();
        Self {
            key,
            members: members.map(|member| format!("`{member}`")).collect(),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        for (at, member) in self.members.iter().enumerate() {
            write!(f, "{}{member}", if at == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

const HEAD: &str = "| part | weight | unit | files | public names |";

const PREFACE: &str = include_str!("preface.md");

impl Page {
    /// Reads a page that was written by `Display`.
    pub(crate) fn parse(page: &str) -> Self {
        let lines = page.lines();
        let rows = lines
            .clone()
            .skip_while(|line| *line != HEAD)
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let mut read = Self {
            rows: rows.filter_map(Row::parse).collect(),
            lists: Vec::new(),
        };
        for line in lines {
            if let Some(title) = line.strip_prefix("## ") {
                read.lists.push(List {
                    title: title.to_owned(),
                    ..List::default()
                });
            } else if let (Some(list), Some(entry)) =
                (read.lists.last_mut(), line.strip_prefix("- "))
            {
                let (key, members) = entry.split_once(": ").unwrap_or((entry, ""));
                let members = members.split(", ").filter(|member| !member.is_empty());
                list.entries.push(Entry {
                    key: key.to_owned(),
                    members: members.map(str::to_owned).collect(),
                });
            }
        }
        read
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{PREFACE}\n{HEAD}\n|---|---:|---|---:|---:|")?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        for list in &self.lists {
            writeln!(f, "\n## {}\n\n{}\n", list.title, list.about)?;
            if list.entries.is_empty() {
                writeln!(f, "None.")?;
            }
            let mut entries = list.entries.iter();
            entries.try_for_each(|entry| writeln!(f, "- {entry}"))?;
        }
        Ok(())
    }
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, part, weight, unit, files, names, _] = cells[..] else {
            return None;
        };
        Some(Self {
            part: part.to_owned(),
            weight: weight.parse().ok()?,
            unit: unit.to_owned(),
            files: files.parse().ok(),
            names: names.parse().ok(),
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |figure: Option<u64>| figure.map(|figure| figure.to_string());
        let (files, names) = (text(self.files), text(self.names));
        write!(
            f,
            "| {} | {} | {} | {} | {} |",
            self.part,
            self.weight,
            self.unit,
            files.unwrap_or_default(),
            names.unwrap_or_default()
        )
    }
}
