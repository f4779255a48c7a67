//! One source file: how many lines of code it has, and what its modules declare, import and name.
//!
//! A line is a line of code if a token of the program is on it, other than a comment of the documentation.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::reader::Reader;

/// A source file.
#[derive(Debug)]
pub(crate) struct Source {
    /// All lines.
    pub(crate) lines: u64,
    /// The lines of code without those of unit tests.
    pub(crate) code: u64,
    /// The lines of code of unit tests.
    pub(crate) tests: u64,
    /// The source has functions that the test harness calls, outside of modules for tests.
    pub(crate) has_tests: bool,
    pub(crate) scope: Scope,
    /// The first cells of the rows of the table of modules, if the documentation has one.
    pub(crate) listed: Vec<String>,
}

/// What one module consists of, without unit tests.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) declared: Vec<Declared>,
    pub(crate) imports: Vec<Import>,
    /// The paths of more than one segment in the code.
    pub(crate) paths: Vec<Vec<String>>,
    pub(crate) methods: Vec<Methods>,
    pub(crate) modules: Vec<Child>,
}

/// A type, function, constant or macro.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) visible: Visible,
    /// The names in the declared item: the items of a trait.
    pub(crate) members: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A struct, enum, union, trait or type alias.
    Type,
    Macro,
    /// A function, constant or static.
    Value,
}

/// One name of a `use` item.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name here; `None` is a glob.
    pub(crate) name: Option<String>,
    pub(crate) visible: Visible,
}

/// An inherent `impl`.
#[derive(Debug)]
pub(crate) struct Methods {
    pub(crate) of: Vec<String>,
    /// How many of the methods and constants are `pub`.
    pub(crate) public: u64,
}

/// A module that is declared in another.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) visible: Visible,
    pub(crate) is_test: bool,
    /// The file that a `#[path]` names.
    pub(crate) path: Option<String>,
    /// What is written in the braces; `None` if the module is another file.
    pub(crate) content: Option<Scope>,
}

/// From where a name is visible, as far as it is written at the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Visible {
    /// Without any `pub`.
    Here,
    /// `pub(…)`, or `pub` with `#[doc(hidden)]`.
    Crate,
    /// `pub`.
    Everywhere,
}

impl Source {
    /// Reads a source.
    ///
    /// # Errors
    ///
    /// If the source is not Rust.
    pub(crate) fn parse(text: &str) -> syn::Result<Self> {
        let tokens: TokenStream = text.parse()?;
        let mut lines = BTreeSet::new();
        lines_of_code(tokens.clone(), &mut lines);
        let all: Vec<&str> = text.lines().collect();
        lines.retain(|at| all.get(at - 1).is_some_and(|line| !line.trim().is_empty()));
        let file: syn::File = syn::parse2(tokens)?;
        let reader = Reader::of(&file);
        let is_tested = |line: &&usize| reader.tests.iter().any(|tests| tests.contains(line));
        let tests = lines.iter().filter(is_tested).count();
        Ok(Self {
            lines: all.len() as u64,
            code: (lines.len() - tests) as u64,
            tests: tests as u64,
            has_tests: reader.has_tests,
            scope: reader.scope,
            listed: listed(text),
        })
    }
}

/// The names in the first column of a table of modules.
fn listed(text: &str) -> Vec<String> {
    const HEADS: [&str; 4] = ["| module |", "| file |", "| part |", "| room |"];
    let docs = text.lines().map_while(|line| line.strip_prefix("//!"));
    let rows = docs
        .map(str::trim)
        .skip_while(|line| !HEADS.iter().any(|head| line.starts_with(head)));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    // Modules of unit tests are not read.
    let names = names.filter(|name| !name.starts_with("tests"));
    names
        .map(|name| name.trim_end_matches('/').to_owned())
        .collect()
}

/// Collects the lines with tokens, except for comments of the documentation, which are attributes to a compiler.
fn lines_of_code(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut trees = tokens.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match &tree {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let inner = trees.next_if(|next| is_punct(next, '!'));
                if trees.next_if(is_documentation).is_none() {
                    let marks = [Some(tree), inner].into_iter().flatten();
                    lines.extend(marks.map(|mark| mark.span().start().line));
                }
            }
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                lines.insert(group.span_close().end().line);
                lines_of_code(group.stream(), lines);
            }
            other => lines.extend(other.span().start().line..=other.span().end().line),
        }
    }
}

fn is_punct(tree: &TokenTree, wanted: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Returns whether this is `[doc = "…"]`.
fn is_documentation(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else {
        return false;
    };
    let inner: Vec<_> = group.stream().into_iter().collect();
    let is_doc = |tree: &TokenTree| matches!(tree, TokenTree::Ident(ident) if ident == "doc");
    group.delimiter() == Delimiter::Bracket
        && matches!(&inner[..], [doc, mark, TokenTree::Literal(_)] if is_doc(doc) && is_punct(mark, '='))
}
