//! The tests that `docs/guarantees-tests.md` names exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, iter};

/// The tests of all sources, by file or folder.
fn tests(folder: &Path, found: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.expect("names are text");
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                tests(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("a source");
            let module = module(&path);
            for (module, test) in listed(&module, &source) {
                found.entry(module).or_default().insert(test);
            }
            found.entry(module).or_default().extend(names(&source));
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

/// The functions with an attribute that makes them tests.
fn names(source: &str) -> impl Iterator<Item = String> {
    let ends = |c: char| !(c.is_alphanumeric() || c == '_');
    let name = move |rest: &str| rest.split(ends).next().unwrap_or_default().to_owned();
    let lines = source.lines().map(str::trim_start);
    let mut lines = lines.filter(|line| !line.starts_with("//"));
    iter::from_fn(move || {
        lines.find(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))?;
        let (_, rest) = lines.find_map(|line| line.split_once("fn "))?;
        Some(name(rest))
    })
}

/// The calls of macros that make a test of each function that they list.
const LISTS: [&str; 2] = ["\nsuite! {", "\ndropped! {"];

/// The functions that such a macro makes tests, with their modules: that of the source, unless the list names them.
fn listed(own: &str, source: &str) -> Vec<(String, String)> {
    let list = LISTS.iter().find_map(|list| source.split_once(list));
    let Some((_, list)) = list else {
        return Vec::new();
    };
    let (mut module, mut depth, mut found) = (own, 1, Vec::new());
    let mut words = list.split_whitespace().peekable();
    while let Some(word) = words.next() {
        match word {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            _ if words.peek() == Some(&"{") => module = word,
            // Names what the tests of the group are given, too.
            _ if words.peek() == Some(&"from") => {
                module = word;
                words.nth(1);
            }
            _ => found.push((module.to_owned(), word.to_owned())),
        }
    }
    found
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
    let page = fs::read_to_string(root.join("docs/guarantees-tests.md")).expect("the page");
    let named = named(&page);
    assert!(named.len() > 80, "{} tests are named", named.len());
    let mut found = BTreeMap::new();
    tests(&root, &mut found);
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
    let source = "fn helper() {}\n\
                  #[test]\n#[should_panic(expected = \"x\")]\nfn present() {}\n\
                  /// As `#[test]`.\nasync fn missing<T>() {}\n\
                  #[tokio::test(start_paused = true)]\nasync fn other() {}\n\
                  #[cfg(test)]\nfn another_helper() {}\n";
    let found: Vec<_> = names(source).collect();
    assert_eq!(found, ["present", "other"]);
    let pairs = |source| {
        let listed = listed("own", source).into_iter();
        let pairs = listed.map(|(module, test)| format!("{module}::{test}"));
        pairs.collect::<Vec<_>>()
    };
    let source = "fn helper() {}\n\ndropped! { one two }\n\nfn three() { four }\n";
    assert_eq!(pairs(source), ["own::one", "own::two"]);
    let source = "\nsuite! {\n    first {\n        one\n    }\n    second from its::open { two }\n}\nthree\n";
    assert_eq!(pairs(source), ["first::one", "second::two"]);
    assert!(pairs("macro_rules! suite {\n    one\n}\n").is_empty());
    assert_eq!(module(Path::new("tests/azurite/main.rs")), "azurite");
    assert_eq!(module(Path::new("tests/it/accept.rs")), "accept");
}
