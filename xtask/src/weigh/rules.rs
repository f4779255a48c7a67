//! What is listed by name: types declared twice, circles, arrows that point up, and others.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Arrow, Crate, Module, Target};
use super::page::Entry;
use super::source::{Kind, Source, Visible};

/// The storeys of a crate, the highest first. A module imports from its own storey and from those below.
const STOREYS: [&[&str]; 5] = [
    &["testing"],
    &[FACADE],
    &["extensions"],
    &["kernel"],
    &["backend", "memory"],
];

/// The storey of the handles.
const FACADE: &str = "service";

/// A crate with these modules has storeys.
const MARKS: [&str; 3] = [FACADE, "extensions", "kernel"];

/// How many files may import each other in a circle.
const CIRCLE: usize = 3;

/// The types of one name that are visible outside of their files.
pub(crate) fn types_declared_twice(name: &str, of: &Crate<'_>) -> Vec<Entry> {
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, module) in of.of_program() {
        let declared = module.scope.declared.iter();
        let types = declared.filter(|one| one.kind == Kind::Type && one.visible != Visible::Here);
        for one in types {
            files.entry(&one.name).or_default().insert(&module.file);
        }
    }
    let twice = files.into_iter().filter(|(_, files)| files.len() > 1);
    twice
        .map(|(declared, files)| Entry::new(format!("`{name}` `{declared}`"), files))
        .collect()
}

/// The files of a crate with the files and names that they import. What only passes names on imports nothing.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<String>>>;

fn imports<'a>(of: &'a Crate<'_>) -> Imports<'a> {
    let mut imports = Imports::new();
    for arrow in of.arrows() {
        let [from, to] = [arrow.from, arrow.to].map(|at| of.modules[at].file.as_str());
        if let Some(name) = arrow.name.filter(|_| !arrow.is_export && from != to) {
            let files = imports.entry(from).or_default();
            files.entry(to).or_default().insert(name);
        }
    }
    imports
}

/// The circles of files that import each other, the largest ones that cannot be divided.
pub(crate) fn circles(name: &str, of: &Crate<'_>) -> Vec<Entry> {
    let circles = strongly_connected(&imports(of)).into_iter();
    let large = circles.filter(|circle| circle.len() > CIRCLE);
    large
        .map(|circle| Entry::new(format!("`{name}`"), circle))
        .collect()
}

/// The imports that circles consist of, one a line.
pub(crate) fn imports_in_circles(of: &Crate<'_>) -> Vec<String> {
    let imports = imports(of);
    let mut lines = Vec::new();
    for circle in strongly_connected(&imports) {
        if circle.len() <= CIRCLE {
            continue;
        }
        lines.push(format!("a circle of {} files:", circle.len()));
        for from in &circle {
            let inner = imports[from].iter().filter(|(to, _)| circle.contains(*to));
            lines.extend(inner.map(|(to, names)| {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                format!("  {from} -> {to}: {}", names.join(", "))
            }));
        }
    }
    lines
}

/// The sets of files that all reach each other.
fn strongly_connected<'a>(imports: &Imports<'a>) -> BTreeSet<BTreeSet<&'a str>> {
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut against: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, files) in imports {
        for to in files.keys() {
            arrows.entry(from).or_default().insert(to);
            against.entry(to).or_default().insert(from);
        }
    }
    let both = imports.keys().map(|file| {
        let (there, back) = (reached(file, &arrows), reached(file, &against));
        there.intersection(&back).copied().collect()
    });
    both.collect()
}

fn reached<'a>(from: &'a str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(file) = open.pop() {
        let next = arrows.get(file).into_iter().flatten().copied();
        open.extend(next.filter(|next| reached.insert(next)));
    }
    reached
}

/// The imports of one storey from another above it.
#[derive(Debug, Default)]
pub(crate) struct Upward {
    /// The files with the modules above them that they import.
    pub(crate) debt: Vec<Entry>,
    /// The files with the types of the highest storey to which they add methods.
    pub(crate) methods: Vec<Entry>,
}

/// Returns whether the modules of a crate are on storeys.
pub(crate) fn has_storeys(of: &Crate<'_>) -> bool {
    let root = of.modules.first();
    root.is_some_and(|root| MARKS.iter().all(|mark| root.children.contains_key(mark)))
}

/// The arrows that point up between the storeys of a crate that has them.
pub(crate) fn upward(of: &Crate<'_>) -> Upward {
    if !has_storeys(of) {
        return Upward::default();
    }
    let storey = |at: usize| {
        let path = &of.modules[at].path;
        STOREYS.iter().position(|storey| path.starts_with(storey))
    };
    let mut debt: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut methods: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for arrow in of.arrows() {
        let (Some(from), Some(to)) = (storey(arrow.from), storey(arrow.to)) else {
            continue;
        };
        if to < from {
            let file = of.modules[arrow.from].file.as_str();
            if let Some(name) = arrow.name.as_ref().filter(|_| adds_methods(of, &arrow)) {
                methods.entry(file).or_default().insert(format!("`{name}`"));
            } else {
                let module = of.modules[arrow.to].path.join("::");
                debt.entry(file).or_default().insert(format!("`{module}`"));
            }
        }
    }
    let entries = |of: BTreeMap<&str, BTreeSet<String>>| {
        let entries = of.into_iter();
        let entries = entries.map(|(file, members)| Entry {
            key: format!("`{file}`"),
            members,
        });
        entries.collect()
    };
    Upward {
        debt: entries(debt),
        methods: entries(methods),
    }
}

/// Returns whether the importing file has methods for the imported type of the highest storey.
fn adds_methods(of: &Crate<'_>, arrow: &Arrow) -> bool {
    let Some(name) = &arrow.name else {
        return false;
    };
    let wanted = Target::Item(arrow.to, name.clone());
    let file = &of.modules[arrow.from].file;
    let mut modules = of.of_program().filter(|(_, module)| module.file == *file);
    of.modules[arrow.to].path.first() == Some(&FACADE)
        && modules.any(|(at, module)| {
            let mut methods = module.scope.methods.iter();
            methods.any(|methods| of.resolve(at, &methods.of).contains(&wanted))
        })
}

/// The files with tests that import from another file with tests.
pub(crate) fn imports_of_tests(of: &Crate<'_>, sources: &BTreeMap<String, Source>) -> Vec<Entry> {
    let has_tests = |module: &Module<'_>| {
        let source = sources.get(&module.file);
        !module.path.is_empty() && source.is_some_and(|source| source.has_tests)
    };
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in of.arrows() {
        let [from, to] = [arrow.from, arrow.to].map(|at| &of.modules[at]);
        if from.file != to.file && has_tests(from) && has_tests(to) {
            found.entry(&from.file).or_default().insert(&to.file);
        }
    }
    let entries = found.into_iter();
    entries
        .map(|(file, imported)| Entry::new(format!("`{file}`"), imported))
        .collect()
}

/// The names in tables of modules that name no module.
pub(crate) fn listed_without_module(
    of: &Crate<'_>,
    sources: &BTreeMap<String, Source>,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut seen = BTreeSet::new();
    for (_, module) in of.of_program() {
        let Some(source) = sources.get(&module.file) else {
            continue;
        };
        let unknown = source.listed.iter().map(String::as_str);
        let unknown = unknown.filter(|name| !module.children.contains_key(name));
        let unknown: BTreeSet<_> = unknown.collect();
        if seen.insert(&module.file) && !unknown.is_empty() {
            entries.push(Entry::new(format!("`{}`", module.file), unknown));
        }
    }
    entries
}

/// The names that a program can write after the name of the crate. A module counts, and what is in it does not.
pub(crate) fn names_at_root<'a>(of: &'a Crate<'_>) -> BTreeSet<&'a str> {
    let root = &of.modules[0];
    let is_public = |visible: Visible| visible == Visible::Everywhere;
    let declared = root.scope.declared.iter();
    let declared = declared.filter(|one| is_public(one.visible));
    let children = root.children.iter();
    let children = children.filter(|(_, child)| is_public(of.modules[**child].visible));
    let imports = root.scope.imports.iter();
    let imports = imports.filter(|import| is_public(import.visible));
    let mut names: BTreeSet<&str> = declared.map(|one| one.name.as_str()).collect();
    names.extend(children.map(|(name, _)| *name));
    names.extend(imports.filter_map(|import| import.name.as_deref()));
    names.extend(of.exported.keys().copied());
    names
}

/// The public names of a crate, by the files that declare them: the modules, types, traits, functions, constants and
/// macros that a path of `pub` leads to, the items of these traits, and the public methods and constants of these
/// types. What `#[doc(hidden)]` hides is left out.
pub(crate) fn public_names(of: &Crate<'_>) -> BTreeMap<String, u64> {
    let mut names = BTreeSet::new();
    let mut open = vec![0];
    let mut visited = BTreeSet::new();
    while let Some(at) = open.pop() {
        if !visited.insert(at) {
            continue;
        }
        let module = &of.modules[at];
        let declared = module.scope.declared.iter();
        let declared = declared.filter(|one| one.visible == Visible::Everywhere);
        names.extend(declared.map(|one| Target::Item(at, one.name.clone())));
        let children = module.children.values().copied();
        let children = children.filter(|child| of.modules[*child].visible == Visible::Everywhere);
        let children: Vec<_> = children.collect();
        names.extend(children.iter().copied().map(Target::Module));
        open.extend(children);
        let imports = module.scope.imports.iter();
        for import in imports.filter(|import| import.visible == Visible::Everywhere) {
            for target in of.resolve(at, &import.path) {
                match (target, &import.name) {
                    (Target::Module(there), None) => open.push(there),
                    (Target::Module(there), Some(_)) => {
                        names.insert(Target::Module(there));
                        open.push(there);
                    }
                    (Target::External, Some(name)) => {
                        names.insert(Target::Item(at, name.clone()));
                    }
                    (Target::External, None) => {}
                    (item, _) => _ = names.insert(item),
                }
            }
        }
    }
    let exported = of.exported.iter();
    names.extend(exported.map(|(name, at)| Target::Item(*at, (*name).to_owned())));
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |at: usize, count: u64| {
        *counted.entry(of.modules[at].file.clone()).or_default() += count;
    };
    for name in &names {
        match name {
            Target::Module(at) => add(*at, 1),
            Target::Item(at, name) => {
                let declared = of.modules[*at].scope.declared.iter();
                let members = declared
                    .filter(|one| one.name == *name)
                    .map(|one| one.members);
                add(*at, 1 + members.max().unwrap_or_default());
            }
            Target::External => {}
        }
    }
    for (at, module) in of.of_program() {
        for methods in &module.scope.methods {
            let of_public = of.resolve(at, &methods.of);
            if of_public.iter().any(|target| names.contains(target)) {
                add(at, methods.public);
            }
        }
    }
    counted
}
