//! The modules of `queue-runtime` import each other as the table in `CONTRIBUTING.md` says, and those of the engine for
//! SQLite in layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The modules of the table, in its order.
fn listed(page: &str) -> Vec<String> {
    let rows = page.lines();
    let rows = rows.skip_while(|line| !line.starts_with("| module | contents |"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names
        .map(|name| name.trim_end_matches('/').to_owned())
        .collect()
}

/// The modules in `folder`, each with the modules that it imports.
fn modules(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.expect("names are text").to_owned();
        if name != "lib" && (path.is_dir() || path.extension().is_some_and(|end| end == "rs")) {
            let imports: &mut BTreeSet<_> = found.entry(name).or_default();
            collect(&path, imports);
        }
    }
    found.retain(|name, _| {
        let declared = folder.join(format!("{name}.rs")).exists();
        declared || folder.join(name).join("mod.rs").exists()
    });
    found
}

fn collect(path: &Path, into: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            collect(&entry.expect("an entry").path(), into);
        }
    } else if path.file_name().is_some_and(|name| name != "tests.rs") {
        imports(&fs::read_to_string(path).expect("a source"), into);
    }
}

/// The first segments of the paths that begin with `crate`, in code that is not only for tests.
fn imports(source: &str, into: &mut BTreeSet<String>) {
    let source = source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = source.lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => into.extend(items(group)),
            None => _ = into.insert(identifier(rest)),
        }
    }
}

/// The first segments in a group of imports, up to its closing brace.
fn items(group: &str) -> Vec<String> {
    let (mut depth, mut found, mut starts) = (1, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => starts = true,
            _ if starts && !c.is_whitespace() => {
                found.push(identifier(&group[at..]));
                starts = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn identifier(text: &str) -> String {
    let ends = |c: char| !(c.is_alphanumeric() || c == '_');
    text.split(ends).next().unwrap_or_default().to_owned()
}

/// The names that the root re-exports, each with its module.
fn exports(root: &str) -> BTreeMap<String, String> {
    let items = root.split("pub use ").skip(1);
    let items = items.filter_map(|rest| rest.split(';').next()?.split_once("::"));
    let exports = items.flat_map(|(module, names)| {
        let names = names.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let names = names.filter(|name| !name.is_empty());
        names.map(|name| (name.to_owned(), module.to_owned()))
    });
    exports.collect()
}

/// Replaces what is imported from the root by the modules that it is re-exported from.
fn resolve(modules: &mut BTreeMap<String, BTreeSet<String>>, exports: &BTreeMap<String, String>) {
    for imports in modules.values_mut() {
        let resolved = |import: &String| exports.get(import).unwrap_or(import).clone();
        *imports = imports.iter().map(resolved).collect();
    }
}

/// What contradicts the order of the table.
fn contradictions(listed: &[String], modules: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let place = |name: &String| listed.iter().position(|listed| listed == name);
    let missing = modules.keys().filter(|name| place(name).is_none());
    let missing = missing.map(|name| format!("`{name}` is not in the table"));
    let gone = listed.iter().filter(|name| !modules.contains_key(*name));
    let gone = gone.map(|name| format!("`{name}` does not exist"));
    let upward = modules.iter().flat_map(|(name, imports)| {
        let imports = imports.iter().filter(move |import| {
            let upward = place(import) < place(name);
            *import != name && modules.contains_key(*import) && upward
        });
        imports.map(move |import| format!("`{name}` imports `{import}`, which is above it"))
    });
    missing.chain(gone).chain(upward).collect()
}

#[test]
fn modules_import_only_modules_below_them() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page");
    let listed = listed(&page);
    assert!(listed.len() > 15, "{} modules are listed", listed.len());
    let folder = root().join("queue-runtime/src");
    let mut modules = modules(&folder);
    let exports = exports(&fs::read_to_string(folder.join("lib.rs")).expect("the root"));
    assert!(exports.len() > 30, "{} names are exported", exports.len());
    resolve(&mut modules, &exports);
    let wrong = contradictions(&listed, &modules);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What remains after the modules that import none of the others were taken away, again and again.
fn circles(mut modules: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let is_left = |name: &&String| modules.contains_key(*name);
        let (above, lowest): (BTreeMap<_, _>, BTreeMap<_, _>) = (modules.clone().into_iter())
            .partition(|(name, imports)| imports.iter().filter(is_left).any(|i| i != name));
        if lowest.is_empty() {
            return above.into_keys().collect();
        }
        modules = above;
    }
}

#[test]
fn the_files_of_the_sqlite_engine_form_layers() {
    let folder = root().join("backends/sqlite/src");
    let mut modules = modules(&folder);
    assert!(modules.len() > 15, "{} modules", modules.len());
    for (name, imported) in &mut modules {
        if let Ok(source) = fs::read_to_string(folder.join(format!("{name}.rs"))) {
            imports(&source.replace("super::", "crate::"), imported);
        }
    }
    let circles = circles(modules);
    assert!(circles.is_empty(), "these import each other: {circles:?}");
}

#[test]
fn a_circle_is_noticed() {
    let module = |name: &str, imports: &[&str]| {
        let imports = imports.iter().map(|&import| import.to_owned());
        (name.to_owned(), imports.collect())
    };
    let (low, high) = (
        module("low", &["elsewhere"]),
        module("high", &["low", "high"]),
    );
    assert!(circles(BTreeMap::from([low.clone(), high])).is_empty());
    let (one, two) = (module("one", &["two", "low"]), module("two", &["one"]));
    assert_eq!(circles(BTreeMap::from([low, one, two])), ["one", "two"]);
}

#[test]
fn a_contradiction_is_noticed() {
    let page = "| module | contents |\n|---|---|\n| `top/` | |\n| `middle`, `low` | `other` |\n\n| `end` |\n";
    let listed = listed(page);
    assert_eq!(listed, ["top", "middle", "low"]);
    let mut imported = BTreeSet::new();
    let source = "use crate::{Root, middle::{a, b}, low};\n/// [`crate::comment`]\ncrate::path::f();\n\
                  #[cfg(test)]\nmod tests {\n    use crate::tested;\n}\n";
    imports(source, &mut imported);
    let imported: Vec<_> = imported.iter().map(String::as_str).collect();
    assert_eq!(imported, ["Root", "low", "middle", "path"]);
    let module = |name: &str, imports: &[&str]| {
        let imports = imports.iter().map(|&import| import.to_owned());
        (name.to_owned(), imports.collect())
    };
    let modules = [
        module("top", &["low", "Root"]),
        module("low", &["middle"]),
        module("extra", &["top"]),
    ];
    let wrong = contradictions(&listed, &BTreeMap::from(modules));
    assert_eq!(
        wrong,
        ["`extra` is not in the table", "`middle` does not exist",]
    );
    let modules = [
        module("top", &[]),
        module("middle", &["Root"]),
        module("low", &["middle"]),
    ];
    let mut modules = BTreeMap::from(modules);
    let exports = exports("pub use top::{Other, Root};\npub use low::inner::Deep;");
    assert_eq!(exports.get("Deep").map(String::as_str), Some("low"));
    resolve(&mut modules, &exports);
    let wrong = contradictions(&listed, &modules);
    assert_eq!(
        wrong,
        [
            "`low` imports `middle`, which is above it",
            "`middle` imports `top`, which is above it",
        ]
    );
}
