//! The tests that `docs/guarantees.md` names exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The functions of all sources, by file or folder.
fn functions(folder: &Path, found: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("names are text");
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                functions(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("a source");
            found
                .entry(module(&path))
                .or_default()
                .extend(names(&source));
        }
    }
}

/// The file's name, or its folder's if that says more.
fn module(path: &Path) -> String {
    let stem = |path: &Path| {
        path.file_stem()
            .and_then(|stem| stem.to_str())
            .map(str::to_owned)
    };
    let own = stem(path).expect("names are text");
    match own.as_str() {
        "main" | "mod" | "tests" => stem(path.parent().expect("a folder")).expect("text"),
        _ => own,
    }
}

fn names(source: &str) -> impl Iterator<Item = String> {
    let ends = |c: char| !(c.is_alphanumeric() || c == '_');
    let name = move |rest: &str| rest.split(ends).next().unwrap_or_default().to_owned();
    source.split("fn ").skip(1).map(name)
}

/// The tests that a page names: the code spans with `::` in its tables' last columns.
fn named(page: &str) -> Vec<(String, String)> {
    let cells = page.lines().filter(|line| line.starts_with('|'));
    let cells = cells.filter_map(|line| line.trim_end_matches('|').rsplit('|').next());
    let spans = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    spans
        .filter_map(|span| span.split_once("::"))
        .map(|(module, test)| (module.to_owned(), test.to_owned()))
        .collect()
}

#[test]
fn every_test_on_the_page_exists() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let page = fs::read_to_string(root.join("docs/guarantees.md")).expect("the page");
    let named = named(&page);
    assert!(named.len() > 80, "{} tests are named", named.len());
    let mut found = BTreeMap::new();
    functions(&root, &mut found);
    let missing: Vec<_> = named
        .iter()
        .filter(|(module, test)| !found.get(module).is_some_and(|tests| tests.contains(test)))
        .collect();
    assert!(
        missing.is_empty(),
        "the page names tests that do not exist: {missing:#?}"
    );
}

#[test]
fn a_missing_test_is_noticed() {
    let page = "| promise | fault | `module::present`, `module::missing` |\n`not::a_table`\n";
    let named = named(page);
    let tests: Vec<_> = named.iter().map(|(_, test)| test.as_str()).collect();
    assert_eq!(tests, ["present", "missing"]);
    let found: Vec<_> = names("#[test]\nfn present() {}\nasync fn other<T>() {}").collect();
    assert_eq!(found, ["present", "other"]);
    assert_eq!(module(Path::new("tests/azurite/main.rs")), "azurite");
    assert_eq!(module(Path::new("tests/it/accept.rs")), "accept");
}
