//! The packages of the workspace, and what kind of code each of their files is.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::modules::Crate;
use super::source::Source;

/// A package of the workspace.
#[derive(Debug)]
pub(crate) struct Package<'a> {
    pub(crate) name: String,
    /// The folder, from the root of the workspace.
    pub(crate) folder: String,
    pub(crate) group: Group,
    /// The library and the programs.
    pub(crate) crates: Vec<Crate<'a>>,
    /// The suites.
    pub(crate) suites: Vec<Crate<'a>>,
    /// The source files.
    pub(crate) files: Vec<SourceFile<'a>>,
}

/// What a package is for, which its first folder says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Library,
    Examples,
    Tools,
    Tests,
}

/// A source file of a package.
#[derive(Debug)]
pub(crate) struct SourceFile<'a> {
    pub(crate) path: &'a str,
    pub(crate) source: &'a Source,
    pub(crate) role: Role,
    /// The names of the folders and of the file, from the root of the crate.
    pub(crate) place: Vec<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Program,
    /// Public modules of the library that only tests call.
    Kit,
    Tests,
    Example,
}

/// The modules of the library that are for tests.
const KITS: [&str; 2] = ["conformance", "testing"];

/// The members of the workspace, with their files.
///
/// # Errors
///
/// If a manifest cannot be read.
pub(crate) fn packages<'a>(
    texts: &BTreeMap<String, String>,
    sources: &'a BTreeMap<String, Source>,
) -> Result<Vec<Package<'a>>, String> {
    let manifest = |folder: &str| {
        let path = beside(folder, "Cargo.toml");
        let text = texts.get(&path).ok_or(format!("{path} is missing"))?;
        let table = text.parse::<Table>();
        table.map_err(|error| format!("failed to read {path}: {error}"))
    };
    let root = manifest("")?;
    let members = root.get("workspace").and_then(|of| of.get("members"));
    let members = members.and_then(Value::as_array).into_iter().flatten();
    let folders: Vec<&str> = (texts.keys())
        .filter_map(|path| path.strip_suffix("/Cargo.toml"))
        .collect();
    let mut packages = Vec::new();
    for member in members.filter_map(Value::as_str) {
        for folder in folders.iter().filter(|folder| matches(member, folder)) {
            packages.push(Package::new(folder, &folders, &manifest(folder)?, sources));
        }
    }
    Ok(packages)
}

/// Returns whether a folder is what a member of the workspace names, which may end in `/*`.
fn matches(member: &str, folder: &str) -> bool {
    match member.strip_suffix("/*") {
        Some(parent) => folder.rsplit_once('/').is_some_and(|(of, _)| of == parent),
        None => member == folder,
    }
}

fn beside(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

impl<'a> Package<'a> {
    fn new(
        folder: &str,
        folders: &[&str],
        manifest: &Table,
        sources: &'a BTreeMap<String, Source>,
    ) -> Self {
        let prefix = format!("{folder}/");
        // A folder within this one may be a package of its own.
        let is_inner = |path: &str| {
            let mut inner = folders.iter().filter(|inner| inner.starts_with(&prefix));
            inner.any(|inner| path.starts_with(&format!("{inner}/")))
        };
        let paths = sources.keys().map(String::as_str);
        let paths = paths.filter(|path| path.starts_with(&prefix) && !is_inner(path));
        let paths: Vec<&str> = paths.collect();
        let (mut roots, mut suites) = (BTreeSet::new(), BTreeSet::new());
        for path in &paths {
            match path[prefix.len()..].split('/').collect::<Vec<_>>()[..] {
                ["src", "lib.rs" | "main.rs"]
                | ["src", "bin", _]
                | ["src", "bin", _, "main.rs"] => {
                    roots.insert((*path).to_owned());
                }
                ["tests", _] | ["tests", _, "main.rs"] => _ = suites.insert((*path).to_owned()),
                _ => {}
            }
        }
        roots.extend(named(manifest, &["lib", "bin"]).map(|path| beside(folder, path)));
        suites.extend(named(manifest, &["test"]).map(|path| beside(folder, path)));
        let crates = |roots: BTreeSet<String>| -> Vec<_> {
            let crates = roots.iter().filter_map(|root| Crate::new(root, sources));
            crates.collect()
        };
        let (crates, suites) = (crates(roots), crates(suites));
        let name = manifest.get("package").and_then(|of| of.get("name"));
        let mut new = Self {
            name: name.and_then(Value::as_str).unwrap_or(folder).to_owned(),
            folder: folder.to_owned(),
            group: match folder.split('/').next() {
                Some("examples") => Group::Examples,
                Some("tests") => Group::Tests,
                Some("tools" | "bench" | "xtask") => Group::Tools,
                _ => Group::Library,
            },
            crates,
            suites,
            files: Vec::new(),
        };
        let files = paths.into_iter().filter_map(|path| {
            let (path, source) = sources.get_key_value(path)?;
            Some(new.file(path, source))
        });
        new.files = files.collect();
        new
    }

    fn file(&self, path: &'a str, source: &'a Source) -> SourceFile<'a> {
        let within = &path[self.folder.len() + 1..];
        let place = within.strip_prefix("src/").unwrap_or(within);
        let place: Vec<_> = place.trim_end_matches(".rs").split('/').collect();
        let modules = self.crates.iter().flat_map(|of| &of.modules);
        let of_file = modules.filter(|module| module.file == path);
        let of_file: Vec<_> = of_file.collect();
        let is_program = match of_file.len() {
            0 => within.starts_with("src/"),
            _ => of_file.iter().any(|module| !module.is_test),
        };
        let role = match (is_program, place[0]) {
            _ if self.group == Group::Tests => Role::Tests,
            (true, first) if self.group == Group::Library && KITS.contains(&first) => Role::Kit,
            (true, _) => Role::Program,
            (false, "examples") => Role::Example,
            (false, _) => Role::Tests,
        };
        SourceFile {
            path,
            source,
            role,
            place,
        }
    }
}

/// The paths of the targets of some kinds that a manifest names.
fn named<'a>(manifest: &'a Table, kinds: &'a [&str]) -> impl Iterator<Item = &'a str> {
    let targets = kinds.iter().filter_map(|kind| manifest.get(*kind));
    let targets = targets.flat_map(|targets| match targets {
        Value::Array(targets) => targets.iter().collect(),
        target => vec![target],
    });
    targets.filter_map(|target| target.get("path")?.as_str())
}
