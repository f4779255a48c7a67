//! What the whole project weighs.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::packages::{Group, Package, Role, SourceFile, packages};
use super::page::{Entry, List, Page, Row};
use super::rules;
use super::source::Source;
use crate::guides::COPIES;

/// The page with the table.
pub(crate) const PAGE: &str = "docs/weight.md";

/// The committed instructions of a message.
const INSTRUCTIONS: &str = "bench/instructions/figures.toml";

/// The row that is written by hand, because CI measures it.
const SECONDS: &str = "seconds of tests";

/// How many lines a source file may have.
const LINES: u64 = 500;

/// The storeys whose folders have rows of their own.
const DIVIDED: [&str; 2] = ["extensions", "kernel"];

/// Weighs the project, of whose files the paths and texts are given.
///
/// # Errors
///
/// If a source is not Rust, or a manifest cannot be read.
pub(crate) fn weigh(texts: &BTreeMap<String, String>) -> Result<Page, String> {
    let sources = sources(texts)?;
    let packages = packages(texts, &sources)?;
    let (lists, methods) = lists(&packages, &sources);
    let mut rows = parts(&packages);
    rows.extend(others(texts)?);
    rows.extend(lists.iter().map(|list| {
        let sizes = list.entries.iter().map(|entry| entry.members.len().max(1));
        Row {
            part: link(&list.title),
            weight: sizes.sum::<usize>() as u64,
            unit: "listed".to_owned(),
            ..Row::default()
        }
    }));
    rows.push(Row {
        part: "extensions' methods on handles".to_owned(),
        weight: methods,
        unit: "imports".to_owned(),
        ..Row::default()
    });
    let crates = packages.iter().flat_map(|package| &package.crates);
    rows.extend(crates.filter(|one| rules::has_storeys(one)).map(|one| Row {
        part: "names at the root".to_owned(),
        weight: rules::names_at_root(one).len() as u64,
        unit: "names".to_owned(),
        ..Row::default()
    }));
    Ok(Page { rows, lists })
}

/// The imports that the listed circles consist of, one a line.
///
/// # Errors
///
/// The errors of [`weigh`].
pub(crate) fn imports_in_circles(texts: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    let sources = sources(texts)?;
    let packages = packages(texts, &sources)?;
    let crates = packages.iter().flat_map(|package| &package.crates);
    Ok(crates.flat_map(rules::imports_in_circles).collect())
}

fn sources(texts: &BTreeMap<String, String>) -> Result<BTreeMap<String, Source>, String> {
    let sources = texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    let sources = sources.map(|(path, text)| match Source::parse(text) {
        Ok(source) => Ok((path.clone(), source)),
        Err(error) => Err(format!("failed to read {path}: {error}")),
    });
    sources.collect()
}

/// A source file with its package and its public names.
struct Weighed<'a> {
    package: &'a Package<'a>,
    file: &'a SourceFile<'a>,
    names: u64,
}

impl Weighed<'_> {
    fn is_library(&self) -> bool {
        self.package.group == Group::Library && self.file.role == Role::Program
    }
}

/// The rows of the packages and of their parts.
fn parts(packages: &[Package<'_>]) -> Vec<Row> {
    let mut weighed = Vec::new();
    for package in packages {
        let mut names = BTreeMap::new();
        if package.group == Group::Library {
            let counted = package.crates.iter().flat_map(rules::public_names);
            counted.for_each(|(file, count)| *names.entry(file).or_insert(0) += count);
        }
        weighed.extend(package.files.iter().map(|file| Weighed {
            package,
            file,
            names: names.get(file.path).copied().unwrap_or_default(),
        }));
    }
    let mut rows = vec![row("library", &weighed, |one| one.is_library())];
    for package in packages
        .iter()
        .filter(|package| package.group == Group::Library)
    {
        let own = |one: &Weighed<'_>| one.is_library() && one.package.name == package.name;
        rows.push(row(&format!("`{}`", package.name), &weighed, own));
        if package.crates.iter().any(rules::has_storeys) {
            rows.extend(folders(package, &weighed));
        }
    }
    let kits = weighed.iter().filter(|one| one.file.role == Role::Kit);
    let kits: BTreeSet<_> = kits
        .map(|one| (one.package.name.as_str(), one.file.place[0]))
        .collect();
    rows.extend(kits.into_iter().map(|(package, kit)| {
        let own = |one: &Weighed<'_>| {
            let is_own = one.package.name == package && one.file.place[0] == kit;
            is_own && one.file.role == Role::Kit
        };
        row(&format!("test kit: `{package}::{kit}`"), &weighed, own)
    }));
    let is_example = |one: &Weighed<'_>| {
        let of_group = one.package.group == Group::Examples && one.file.role == Role::Program;
        of_group || one.file.role == Role::Example
    };
    rows.push(row("examples", &weighed, is_example));
    let is_tool =
        |one: &Weighed<'_>| one.package.group == Group::Tools && one.file.role == Role::Program;
    rows.push(row("tools", &weighed, is_tool));
    for package in packages
        .iter()
        .filter(|package| package.group == Group::Tools)
    {
        let own = |one: &Weighed<'_>| is_tool(one) && one.package.name == package.name;
        rows.push(row(&format!("`{}`", package.name), &weighed, own));
    }
    rows.extend(tests(&weighed));
    rows
}

/// The rows of the folders of a package with storeys.
fn folders(package: &Package<'_>, weighed: &[Weighed<'_>]) -> Vec<Row> {
    let own = |one: &&Weighed<'_>| one.is_library() && one.package.name == package.name;
    let own = weighed.iter().filter(own);
    let mut folders = BTreeSet::new();
    for one in own {
        match one.file.place[..] {
            [first, second, _, ..] if DIVIDED.contains(&first) => {
                folders.extend([vec![first], vec![first, second]]);
            }
            [first, _, ..] => _ = folders.insert(vec![first]),
            _ => {}
        }
    }
    let rows = folders.into_iter().map(|folder| {
        let own = |one: &Weighed<'_>| {
            let is_own = one.is_library() && one.package.name == package.name;
            is_own && one.file.place.starts_with(&folder)
        };
        let part = format!("`{}`: {}", package.name, folder.join("/"));
        row(&part, weighed, own)
    });
    rows.collect()
}

fn row(part: &str, of: &[Weighed<'_>], own: impl Fn(&Weighed<'_>) -> bool) -> Row {
    let own: Vec<_> = of.iter().filter(|one| own(one)).collect();
    let has_names = |one: &&Weighed<'_>| one.is_library() || one.file.role == Role::Kit;
    Row {
        part: part.to_owned(),
        weight: own.iter().map(|one| one.file.source.code).sum(),
        unit: "lines".to_owned(),
        files: Some(own.len() as u64),
        names: own
            .iter()
            .any(has_names)
            .then(|| own.iter().map(|one| one.names).sum()),
    }
}

fn tests(weighed: &[Weighed<'_>]) -> [Row; 2] {
    let (mut unit, mut others) = (0, (0, 0));
    for one in weighed {
        let source = one.file.source;
        if one.file.role != Role::Tests {
            unit += source.tests;
        } else if one.package.group != Group::Tests && one.file.path.contains("/src/") {
            unit += source.code + source.tests;
        } else {
            others = (others.0 + source.code + source.tests, others.1 + 1);
        }
    }
    let row = |part: &str, weight, files| Row {
        part: part.to_owned(),
        weight,
        unit: "lines".to_owned(),
        files,
        names: None,
    };
    [
        row("unit tests", unit, None),
        row("other tests", others.0, Some(others.1)),
    ]
}

/// The rows of what is not Rust.
fn others(texts: &BTreeMap<String, String>) -> Result<Vec<Row>, String> {
    let row = |part: &str, weight: u64, unit: &str, files| Row {
        part: part.to_owned(),
        weight,
        unit: unit.to_owned(),
        files,
        names: None,
    };
    let pages = texts
        .iter()
        .filter(|(path, _)| path.ends_with(".md") && *path != PAGE)
        .filter(|(path, _)| !path.starts_with(COPIES));
    let (changes, pages): (Vec<_>, Vec<_>) =
        pages.partition(|(path, _)| path.ends_with("CHANGELOG.md"));
    let words = |pages: &[(&String, &String)]| {
        let words = pages
            .iter()
            .map(|(_, text)| text.split_whitespace().count() as u64);
        words.sum()
    };
    let mut rows = vec![
        row("pages", words(&pages), "words", Some(pages.len() as u64)),
        row("changelog", words(&changes), "words", None),
    ];
    if let Some(text) = texts.get(INSTRUCTIONS) {
        let figures = text.parse::<Table>();
        let figures = figures.map_err(|error| format!("failed to read {INSTRUCTIONS}: {error}"))?;
        for (name, figure) in &figures {
            if let Some(figure) = figure_of(figure) {
                rows.push(row(
                    &format!("instructions of `{name}`"),
                    figure,
                    "instructions",
                    None,
                ));
            }
        }
    }
    let committed = texts.get(PAGE).map(|page| Page::parse(page));
    let written = committed.into_iter().flat_map(|page| page.rows);
    rows.extend(written.filter(|row| row.part == SECONDS));
    Ok(rows)
}

fn figure_of(value: &Value) -> Option<u64> {
    value.as_integer().and_then(|figure| figure.try_into().ok())
}

/// The link to a list of the page.
fn link(title: &str) -> String {
    let title = title.to_lowercase();
    format!("[{title}](#{})", title.replace(' ', "-"))
}

/// The lists, and how many types of the facade extensions add methods to.
fn lists(packages: &[Package<'_>], sources: &BTreeMap<String, Source>) -> (Vec<List>, u64) {
    let [mut twice, mut circles, mut debt, mut tests, mut tables] = [const { Vec::new() }; 5];
    let mut methods = 0;
    for package in packages {
        for one in &package.crates {
            twice.extend(rules::types_declared_twice(&package.name, one));
            circles.extend(rules::circles(&package.name, one));
            tables.extend(rules::listed_without_module(one, sources));
            let upward = rules::upward(one);
            debt.extend(upward.debt);
            methods += upward
                .methods
                .iter()
                .map(|entry| entry.members.len() as u64)
                .sum::<u64>();
        }
        for suite in &package.suites {
            tests.extend(rules::imports_of_tests(suite, sources));
        }
    }
    let files = packages.iter().flat_map(|package| &package.files);
    let long = files.filter(|file| file.role != Role::Tests && file.source.lines > LINES);
    let long = long.map(|file| Entry::new(format!("`{}`", file.path), []));
    let list = |title: &str, about, entries| List {
        title: title.to_owned(),
        about,
        entries,
    };
    let lists = vec![
        list("Long files", LONG, long.collect()),
        list("Types declared twice", TWICE, twice),
        list("Circles", CIRCLES, circles),
        list("Arrows that point up", UPWARD, debt),
        list("Imports of tests", TESTS, tests),
        list("Rows without module", TABLES, tables),
    ];
    (lists, methods)
}

const LONG: &str =
    "Source files of more than 500 lines, with comments and unit tests: they should be two.";

const TWICE: &str = "Types of one crate that share a name and are visible outside of their files, as `pub` or `pub(…)`: \
                     who searches for one finds the other.";

const CIRCLES: &str = "More than three files of one crate that all import each other: none of them can be understood alone. A \
                       `pub use` only passes names on, and is no import here.";

const UPWARD: &str = "Files of `storage-queues` with the modules that they import from a storey above theirs. It is a debt.";

const TESTS: &str =
    "Files with tests that import from another: what test files share is in modules without tests.";

const TABLES: &str = "Names in the tables of modules that name no module.";

#[cfg(test)]
mod tests;
