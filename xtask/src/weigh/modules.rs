//! The modules of a crate, and which module declares what a path names.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Import, Kind, Scope, Source, Visible};

/// A crate.
#[derive(Debug)]
pub(crate) struct Crate<'a> {
    /// The modules, the root first.
    pub(crate) modules: Vec<Module<'a>>,
    /// The macros with `#[macro_export]`, with their modules.
    pub(crate) exported: BTreeMap<&'a str, usize>,
}

/// A module of a crate.
#[derive(Debug)]
pub(crate) struct Module<'a> {
    /// The module's path from the root.
    pub(crate) path: Vec<&'a str>,
    pub(crate) file: String,
    pub(crate) scope: &'a Scope,
    pub(crate) visible: Visible,
    pub(crate) is_test: bool,
    parent: Option<usize>,
    pub(crate) children: BTreeMap<&'a str, usize>,
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Module(usize),
    /// A name that a module declares.
    Item(usize, String),
    /// A name of another crate.
    External,
}

/// An import or a path: the module in which it is written, and what it leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The name in `to`; `None` if the module itself is imported.
    pub(crate) name: Option<String>,
    /// The import only passes names on.
    pub(crate) is_export: bool,
}

impl<'a> Crate<'a> {
    /// The crate whose root is the file `root`.
    pub(crate) fn new(root: &str, sources: &'a BTreeMap<String, Source>) -> Option<Self> {
        let mut new = Self {
            modules: Vec::new(),
            exported: BTreeMap::new(),
        };
        let scope = &sources.get(root)?.scope;
        new.add(
            Module {
                path: Vec::new(),
                file: root.to_owned(),
                scope,
                visible: Visible::Everywhere,
                is_test: false,
                parent: None,
                children: BTreeMap::new(),
            },
            folder(root).to_owned(),
            sources,
        );
        Some(new)
    }

    /// Adds a module and those in it, whose files are in `folder`.
    fn add(
        &mut self,
        module: Module<'a>,
        folder: String,
        sources: &'a BTreeMap<String, Source>,
    ) -> usize {
        let at = self.modules.len();
        let (scope, file) = (module.scope, module.file.clone());
        let (path, is_test) = (module.path.clone(), module.is_test);
        let exported = scope.declared.iter();
        let exported =
            exported.filter(|one| one.kind == Kind::Macro && one.visible != Visible::Here);
        let exported: Vec<_> = exported.map(|one| (one.name.as_str(), at)).collect();
        self.modules.push(module);
        self.exported.extend(exported);
        for child in &scope.modules {
            let beside = format!("{folder}/{}", child.name);
            let (file, scope, folder) = match &child.content {
                Some(scope) => (file.clone(), scope, beside),
                None => {
                    let named = child.path.as_ref();
                    let named =
                        named.map(|named| normal(&format!("{}/{named}", self::folder(&file))));
                    let files = [format!("{beside}.rs"), format!("{beside}/mod.rs")];
                    let is_named = named.is_some();
                    let mut files = named.into_iter().chain(files);
                    let Some(found) = files.find(|file| sources.contains_key(file)) else {
                        continue;
                    };
                    let folder = if is_named {
                        self::folder(&found).to_owned()
                    } else {
                        beside
                    };
                    let scope = &sources[&found].scope;
                    (found, scope, folder)
                }
            };
            let added = Module {
                path: path.iter().copied().chain([child.name.as_str()]).collect(),
                file,
                scope,
                visible: child.visible,
                is_test: is_test || child.is_test,
                parent: Some(at),
                children: BTreeMap::new(),
            };
            let added = self.add(added, folder, sources);
            self.modules[at].children.insert(&child.name, added);
        }
        at
    }

    /// The modules that are not for tests.
    pub(crate) fn of_program(&self) -> impl Iterator<Item = (usize, &Module<'a>)> {
        let modules = self.modules.iter().enumerate();
        modules.filter(|(_, module)| !module.is_test)
    }

    /// What a path names that is written in a module.
    pub(crate) fn resolve(&self, from: usize, path: &[String]) -> BTreeSet<Target> {
        self.resolve_guarded(from, path, &mut Vec::new())
    }

    fn resolve_guarded(&self, from: usize, path: &[String], open: &mut Open) -> BTreeSet<Target> {
        let Some((head, mut rest)) = path.split_first() else {
            return BTreeSet::new();
        };
        let parent = |at: usize| self.modules[at].parent.unwrap_or(0);
        let mut at = match head.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => parent(from),
            name => {
                let found = self.look_up(from, name, open);
                let found = found.unwrap_or_else(|| BTreeSet::from([Target::External]));
                return self.descend(found, rest, open);
            }
        };
        while let Some((_, further)) = rest.split_first().filter(|(head, _)| *head == "super") {
            (at, rest) = (parent(at), further);
        }
        self.descend(BTreeSet::from([Target::Module(at)]), rest, open)
    }

    /// Follows the segments of a path. What stands behind a type belongs to it.
    fn descend(
        &self,
        targets: BTreeSet<Target>,
        path: &[String],
        open: &mut Open,
    ) -> BTreeSet<Target> {
        let Some((name, rest)) = path.split_first() else {
            return targets;
        };
        let modules = targets.iter().filter_map(|target| match target {
            Target::Module(at) => Some(*at),
            _ => None,
        });
        let modules: Vec<_> = modules.collect();
        if modules.is_empty() {
            return targets;
        }
        let found = modules.into_iter().flat_map(|at| {
            match self.look_up(at, name, open) {
                Some(found) => self.descend(found, rest, open),
                // As a macro declares it.
                None => BTreeSet::from([Target::Item(at, name.clone())]),
            }
        });
        found.collect()
    }

    /// What a module calls by a name; `None` if unknown.
    fn look_up(&self, at: usize, name: &str, open: &mut Open) -> Option<BTreeSet<Target>> {
        if open
            .iter()
            .any(|(open, asked)| *open == at && asked == name)
        {
            return None;
        }
        open.push((at, name.to_owned()));
        let module = &self.modules[at];
        let mut found = BTreeSet::new();
        if module.scope.declared.iter().any(|one| one.name == name) {
            found.insert(Target::Item(at, name.to_owned()));
        }
        found.extend(module.children.get(name).copied().map(Target::Module));
        let imports = module.scope.imports.iter();
        let named = |import: &&Import| import.name.as_deref() == Some(name);
        for import in imports.clone().filter(named) {
            // Its own name is looked up outside, unless it stands for a declared one.
            found.extend(self.resolve_guarded(at, &import.path, open));
        }
        if found.len() > 1 {
            found.remove(&Target::External);
        }
        if found.is_empty() {
            for import in imports.filter(|import| import.name.is_none()) {
                for target in self.resolve_guarded(at, &import.path, open) {
                    if let Target::Module(there) = target {
                        found.extend(self.look_up(there, name, open).unwrap_or_default());
                    }
                }
            }
        }
        if let (0, Some(&there)) = (at, self.exported.get(name)) {
            found.insert(Target::Item(there, name.to_owned()));
        }
        open.pop();
        (!found.is_empty()).then_some(found)
    }

    /// What the program's modules import and name, each once.
    pub(crate) fn arrows(&self) -> BTreeSet<Arrow> {
        let mut arrows = BTreeSet::new();
        for (from, module) in self.of_program() {
            let mut add = |path: &[String], is_export: bool, is_glob: bool| {
                for target in self.resolve(from, path) {
                    let (to, name) = match target {
                        Target::Item(to, name) => (to, Some(name)),
                        Target::Module(to) if is_glob => (to, Some("*".to_owned())),
                        Target::Module(to) => (to, None),
                        Target::External => continue,
                    };
                    arrows.insert(Arrow {
                        from,
                        to,
                        name,
                        is_export,
                    });
                }
            };
            for import in &module.scope.imports {
                let is_export = import.visible != Visible::Here;
                add(&import.path, is_export, import.name.is_none());
            }
            let paths = module.scope.paths.iter();
            paths.for_each(|path| add(path, false, false));
        }
        arrows
    }
}

/// The names that are being looked up, each in a module.
type Open = Vec<(usize, String)>;

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path without `..`.
fn normal(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => _ = kept.pop(),
            "." | "" => {}
            part => kept.push(part),
        }
    }
    kept.join("/")
}
