//! What test files share is in modules without tests.

use std::path::{Path, PathBuf};
use std::{fs, iter};

/// The folders of all suites that have several files.
fn suites(folder: &Path, found: &mut Vec<PathBuf>) {
    let is_tests = folder.ends_with("tests");
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if !path.is_dir() || name == "target" || name.starts_with('.') {
            continue;
        }
        if is_tests && path.join("main.rs").is_file() {
            found.push(path);
        } else {
            suites(&path, found);
        }
    }
}

/// The modules of a suite, with their sources.
fn modules(folder: &Path) -> Vec<(String, String)> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            modules.extend(self::modules(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = path.file_stem().expect("a name").display().to_string();
            modules.push((module, fs::read_to_string(&path).expect("a source")));
        }
    }
    modules
}

/// The names that a source has from the root of its crate.
fn names(source: &str) -> impl Iterator<Item = &str> {
    let mut rest = source;
    let paths = iter::from_fn(move || {
        (_, rest) = rest.split_once("crate::")?;
        Some(match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default(),
            None => rest.split([':', ';', ' ', '(']).next().unwrap_or_default(),
        })
    });
    paths.flat_map(|path| path.split([',', ' ', '\n']))
}

/// Those that import from a module with tests, and its name.
fn wrong(modules: &[(String, String)]) -> Vec<(&str, &str)> {
    let is_test = |source: &str| source.contains("#[test]") || source.contains("#[tokio::test");
    let tests: Vec<_> = (modules.iter().filter(|(_, source)| is_test(source)))
        .map(|(module, _)| module.as_str())
        .filter(|module| *module != "main")
        .collect();
    let imports = modules.iter().flat_map(|(module, source)| {
        let names = names(source).filter(|name| tests.contains(name));
        names.map(move |name| (module.as_str(), name))
    });
    imports.filter(|(module, name)| module != name).collect()
}

#[test]
fn no_test_file_imports_another() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut folders = Vec::new();
    suites(root, &mut folders);
    assert!(folders.len() > 8, "{folders:?}");
    for folder in folders {
        let modules = modules(&folder);
        let wrong = wrong(&modules);
        assert!(
            wrong.is_empty(),
            "in {}, move what is shared to a module without tests: {wrong:?}",
            folder.display()
        );
    }
}

#[test]
fn an_import_of_a_test_file_is_noticed() {
    let source = |module: &str, source: &str| (module.to_owned(), source.to_owned());
    let suite = [
        source("support", "pub(crate) fn count() {}"),
        source("accept", "use crate::support::count;\n#[test]\nfn one() {}"),
        source(
            "poison",
            "#[tokio::test]\nasync fn two() { crate::accept::order() }",
        ),
        source("redrive", "use crate::{\n    support,\n    poison::three};"),
    ];
    assert_eq!(wrong(&suite[..2]), []);
    assert_eq!(wrong(&suite[..3]), [("poison", "accept")]);
    assert_eq!(
        names(&suite[3].1).collect::<Vec<_>>().concat(),
        "supportpoison::three"
    );
}
