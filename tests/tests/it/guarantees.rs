//! The tests that `docs/guarantees-tests.md` names exist where it says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, iter};

/// The functions with an attribute that makes them tests.
fn names(source: &str) -> impl Iterator<Item = &str> {
    let mut lines = code(source);
    iter::from_fn(move || {
        lines.find(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))?;
        lines.find_map(function)
    })
}

/// The lines of a source without those of comments.
fn code(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().map(str::trim_start);
    lines.filter(|line| !line.starts_with("//"))
}

/// The function that a line of code begins.
fn function(line: &str) -> Option<&str> {
    let ends = |c: char| !(c.is_alphanumeric() || c == '_');
    let (_, rest) = line.split_once("fn ")?;
    rest.split(ends).next()
}

/// The calls of macros that make a test of each function that they list.
const LISTS: [&str; 2] = ["\nsuite! {", "\ndropped! {"];

/// The functions that such a macro makes tests, with their modules: that of the source, unless the list names them.
fn listed<'a>(own: &'a str, source: &'a str) -> Vec<(&'a str, &'a str)> {
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
            _ => found.push((module, word)),
        }
    }
    found
}

/// The file's name without its extension.
fn module(path: &Path) -> &str {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.expect("names are text")
}

/// The tests of a source. Those that a list makes tests are in its own file, or in one of the folder of its name.
fn tests(root: &Path, path: &str) -> BTreeSet<String> {
    let path = root.join(path);
    let Ok(source) = fs::read_to_string(&path) else {
        return BTreeSet::new();
    };
    let list = path.parent().expect("a folder").with_extension("rs");
    let list = fs::read_to_string(list).unwrap_or_default();
    let own = module(&path);
    let here = listed(own, &source).into_iter().chain(listed(own, &list));
    let here: BTreeSet<_> = here.filter(|(module, _)| *module == own).collect();
    let functions = code(&source).filter_map(function);
    let listed = functions.filter(|function| here.contains(&(own, function)));
    names(&source).chain(listed).map(str::to_owned).collect()
}

/// The code spans of a page's indented line that begins with one: the names of tests and the paths of their files.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    let line = line.strip_prefix("  ").filter(|line| line.starts_with('`'));
    line.into_iter()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The tests that a page names, with their files, and the lines whose file is unknown. Names without a path are in the
/// file that their section has named last.
fn named(page: &str) -> (Vec<(&str, &str)>, Vec<&str>) {
    let (mut named, mut unclear, mut file) = (Vec::new(), Vec::new(), None);
    for line in page.lines() {
        if line.starts_with('#') {
            file = None;
        }
        for span in spans(line) {
            match file {
                _ if span.ends_with(".rs") => file = Some(span),
                Some(file) => named.push((file, span)),
                None => unclear.push(line),
            }
        }
    }
    (named, unclear)
}

/// The faults of a page below which there is neither a test nor a step, nor `none`.
fn untested(page: &str) -> Vec<&str> {
    let (mut untested, mut fault) = (Vec::new(), None);
    for line in page.lines() {
        if !line.starts_with("  ") {
            untested.extend(fault.take());
        }
        if line.starts_with("- ") {
            fault = Some(line);
        }
        let tested = spans(line).any(|span| !span.ends_with(".rs"));
        if tested || line.starts_with("  none: ") || line.starts_with("  the step ") {
            fault = None;
        }
    }
    untested.extend(fault);
    untested
}

#[test]
fn every_test_on_the_page_is_where_it_says() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let page = fs::read_to_string(root.join("docs/guarantees-tests.md")).expect("the page");
    let (named, unclear) = named(&page);
    assert!(unclear.is_empty(), "no file is named: {unclear:#?}");
    let untested = untested(&page);
    assert!(untested.is_empty(), "no tests are named: {untested:#?}");
    assert!(named.len() > 80, "{} tests are named", named.len());
    let paths: BTreeSet<_> = named.iter().map(|(path, _)| *path).collect();
    let found = paths.into_iter().map(|path| (path, tests(&root, path)));
    let found: BTreeMap<_, _> = found.collect();
    let missing = named
        .iter()
        .filter(|(path, test)| !found[path].contains(*test));
    let missing: Vec<_> = missing.collect();
    assert!(
        missing.is_empty(),
        "the page names tests that do not exist: {missing:#?}"
    );
}

#[test]
fn a_missing_test_is_noticed() {
    let page = "- A fault.\n  `stray`\n- `code` fails.\n  `a/b.rs`: `one`,\n  `two`;\n  `c.rs`: `three`\n\
                - Two lines of\n  a fault.\n  `four`; none on Azure\n- A step.\n  the step `six`\n\
                - Not on Azure.\n  none: it has no files\n- Forgotten\n  `d.rs`:\n\n## Next\n\n- A fault.\n\
                - Another.\n  `five`\n";
    let (pairs, unclear) = named(page);
    let expected = [
        ("a/b.rs", "one"),
        ("a/b.rs", "two"),
        ("c.rs", "three"),
        ("c.rs", "four"),
    ];
    assert_eq!(pairs, expected);
    assert_eq!(unclear, ["  `stray`", "  `five`"]);
    assert_eq!(untested(page), ["- Forgotten", "- A fault."]);
    let source = "fn helper() {}\n\
                  #[test]\n#[should_panic(expected = \"x\")]\nfn present() {}\n\
                  /// As `#[test]`.\nasync fn missing<T>() {}\n\
                  #[tokio::test(start_paused = true)]\nasync fn other() {}\n\
                  #[cfg(test)]\nfn another_helper() {}\n";
    let found: Vec<_> = names(source).collect();
    assert_eq!(found, ["present", "other"]);
    let source = "fn helper() {}\n\ndropped! { one two }\n\nfn three() { four }\n";
    assert_eq!(listed("own", source), [("own", "one"), ("own", "two")]);
    let source = "\nsuite! {\n    first {\n        one\n    }\n    second from its::open { two }\n}\nthree\n";
    assert_eq!(listed("own", source), [("first", "one"), ("second", "two")]);
    assert!(listed("own", "macro_rules! suite {\n    one\n}\n").is_empty());
}

#[test]
fn a_test_is_looked_for_in_the_file_that_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |path: &str, source: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, source).expect("written");
    };
    write("a.rs", "\nsuite! {\n    b { listed }\n}\n");
    write("a/b.rs", "pub fn listed() {}\nfn helper() {}\n");
    write("a/c.rs", "#[test]\nfn test() {}\nfn listed() {}\n");
    let found = |path| tests(folder.path(), path).into_iter().collect::<Vec<_>>();
    assert_eq!(found("a/b.rs"), ["listed"]);
    assert_eq!(found("a/c.rs"), ["test"]);
    assert!(found("a/missing.rs").is_empty());
}
