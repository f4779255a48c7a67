//! The compiler's diagnostics for wrong uses of the framework, word for word.
//!
//! After a change of a text: `TRYBUILD=overwrite cargo test --workspace --all-features --test ui`, and read the
//! difference.

use std::fs;
use std::path::Path;

use syn::{Item, LitStr};

#[test]
fn diagnostics() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/fail/*.rs");
}

/// Every error text of the derive appears in an expected output.
#[test]
fn every_problem_of_the_derive_has_a_case() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string(root.join("../queue-derive/src/problem.rs")).expect("readable");
    let outputs: Vec<String> = fs::read_dir(root.join("ui/fail"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "stderr"))
        .map(|path| fs::read_to_string(path).expect("readable"))
        .collect();
    let lines: Vec<&str> = outputs.iter().flat_map(|output| output.lines()).collect();

    let texts = problem_texts(&source);
    assert!(texts.len() > 20, "the texts are found: {texts:#?}");
    let uncovered: Vec<&String> = texts
        .iter()
        .filter(|text| !lines.iter().any(|line| is_instance(line, text)))
        .collect();
    assert!(
        uncovered.is_empty(),
        "add a case to ui/fail for each of {uncovered:#?}"
    );
}

/// The format strings of `enum Problem`.
fn problem_texts(source: &str) -> Vec<String> {
    let file = syn::parse_file(source).expect("Rust");
    file.items
        .into_iter()
        .filter_map(|item| match item {
            Item::Enum(item) if item.ident == "Problem" => Some(item.variants),
            _ => None,
        })
        .flatten()
        .flat_map(|variant| variant.attrs)
        .filter(|attribute| attribute.path().is_ident("error"))
        .map(|attribute| {
            let text: LitStr = attribute.parse_args().expect("a text");
            text.value()
        })
        .collect()
}

/// Returns whether `line` is `error: ` and the text, with any value for each `{…}`.
fn is_instance(line: &str, text: &str) -> bool {
    let Some(mut rest) = line.strip_prefix("error: ") else {
        return false;
    };
    let mut literals = text
        .split('{')
        .map(|part| part.split_once('}').map_or(part, |(_, literal)| literal));
    let first = literals.next().unwrap_or_default();
    match rest.strip_prefix(first) {
        Some(after) => rest = after,
        None => return false,
    }
    literals.all(|literal| match rest.find(literal) {
        Some(at) => {
            rest = &rest[at + literal.len()..];
            true
        }
        None => false,
    })
}
