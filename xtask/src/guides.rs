//! `cargo xtask guides`: copies the guides into the package `storage-queues`, whose documentation shows them.
//!
//! A published package has no files from above its folder. In a copy, a link to a page that is copied leads to the
//! module of that page; any other file is named by its path in the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the copies are, from the root of the repository.
pub(crate) const COPIES: &str = "queue-runtime/src/docs/guide/";

/// The pages that are copied, by their paths from the root, with the modules that show them.
const PAGES: [(&str, &str); 16] = [
    (INDEX, "index"),
    ("README.md", "readme"),
    ("docs/when-not.md", "when_not"),
    ("docs/which-once.md", "which_once"),
    ("docs/where-is-my-message.md", "where_is_my_message"),
    ("docs/recipes.md", "recipes"),
    ("docs/listener.md", "listener"),
    ("docs/testing.md", "testing"),
    ("docs/sqlite.md", "sqlite"),
    ("docs/postgres.md", "postgres"),
    ("docs/azure.md", "azure"),
    ("docs/deployment.md", "deployment"),
    ("docs/operating.md", "operating"),
    ("docs/observability.md", "observability"),
    ("docs/settlement.md", "settlement"),
    ("docs/states.md", "states"),
];

/// The page that the module above the others shows.
const INDEX: &str = "docs/README.md";

/// Writes the copies.
pub(crate) fn run() -> ExitCode {
    for (page, module) in PAGES {
        let path = root().join(copy(module));
        let written = read(page).and_then(|text| {
            fs::write(&path, copied(page, &text))
                .map_err(|error| format!("failed to write {}: {error}", path.display()))
        });
        if let Err(error) = written {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("failed to read {path}: {error}"))
}

/// The path of the copy that a module shows.
fn copy(module: &str) -> String {
    format!("{COPIES}{module}.md")
}

/// Returns the copy of a page.
fn copied(page: &str, text: &str) -> String {
    let (mut copy, mut prose, mut code) = (String::new(), String::new(), false);
    for line in text.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        if !code && !fence {
            prose.push_str(line);
            continue;
        }
        code ^= fence;
        copy.push_str(&with_links(page, &prose));
        prose.clear();
        copy.push_str(line);
    }
    copy + &with_links(page, &prose)
}

/// Changes the links in text without blocks of code.
fn with_links(page: &str, text: &str) -> String {
    let mut changed = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else {
            break;
        };
        changed.push_str(before);
        match place(page, target) {
            Place::Unchanged => changed.push_str(&format!("]({target})")),
            Place::Module(path) => changed.push_str(&format!("]({path})")),
            Place::Repository(path) => {
                let start = changed.rfind('[').expect("a link has a text");
                let label = changed.split_off(start);
                if changed.ends_with('!') {
                    changed.pop();
                }
                let text = &label[1..];
                changed.push_str(&if path.ends_with(text.trim_matches('`')) {
                    format!("`{path}`")
                } else {
                    format!("{text} (`{path}`)")
                });
            }
        }
        rest = after;
    }
    changed + rest
}

/// What a link leads to.
enum Place {
    /// A place in the same page, or on the web.
    Unchanged,
    /// The path of a module, with the anchor.
    Module(String),
    /// The path of a file that is not copied.
    Repository(String),
}

fn place(page: &str, target: &str) -> Place {
    if target.starts_with('#') || target.contains("://") {
        return Place::Unchanged;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = from_root(page, path);
    let Some((_, module)) = PAGES.iter().find(|(page, _)| *page == path) else {
        return Place::Repository(path);
    };
    let mut place = "crate::guide".to_owned();
    if path != INDEX {
        place.push_str(&format!("::{module}"));
    }
    if !anchor.is_empty() {
        place.push_str(&format!("#{anchor}"));
    }
    Place::Module(place)
}

/// The path from the root of what a page names by a path from its own folder.
fn from_root(page: &str, path: &str) -> String {
    let mut parts: Vec<_> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_copies_are_those_of_the_pages() {
        for (page, module) in PAGES {
            let is = read(&copy(module)).expect("the copy");
            let expected = copied(page, &read(page).expect("the page"));
            assert!(
                is == expected,
                "{} is not the copy of {page}: run `cargo xtask guides`",
                copy(module)
            );
        }
    }

    #[test]
    fn links_lead_to_modules_or_name_files() {
        let page = "[a](sqlite.md#time), [b](../README.md), [c](README.md), [d](#e) and\n\
                    [f](https://g.h)\n```rust\nx[i](design.md)\n```\n\
                    - [the `wire`\n  format](design.md#j), ![k](../l.png), [`examples/m`](../examples/m), [design.md](design.md)\n";
        assert_eq!(
            copied("docs/testing.md", page),
            "[a](crate::guide::sqlite#time), [b](crate::guide::readme), [c](crate::guide), [d](#e) and\n\
             [f](https://g.h)\n```rust\nx[i](design.md)\n```\n\
             - the `wire`\n  format (`docs/design.md`), k (`l.png`), `examples/m`, `docs/design.md`\n"
        );
    }
}
