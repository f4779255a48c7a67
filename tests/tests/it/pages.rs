//! The pages of the documentation lead to places that exist, the README shows a program that runs (`examples/hello`), and
//! lists of what the sources have are whole.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The pages at the root, in `docs` and beside two examples, by their paths from the root.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "examples/languages", "examples/mosaic"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(Path::new(folder).join(path.file_name().expect("a name")));
            }
        }
    }
    pages
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).expect("the page")
}

/// The lines that are not in blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The targets of links and images to files of the repository.
fn links(page: &str) -> Vec<String> {
    let text = prose(page).collect::<Vec<_>>().join("\n");
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    let targets = targets.filter(|target| !target.contains("://"));
    targets.map(str::to_owned).collect()
}

/// The anchors of the headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    titles
        .map(|title| title.chars().filter(kept).collect::<String>())
        .map(|title| title.replace(' ', "-"))
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let (mut broken, mut followed) = (Vec::new(), 0);
    for page in pages() {
        let text = read(&page);
        for link in links(&text) {
            followed += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().expect("a folder").join(path),
            };
            let exists = root().join(&target).exists();
            if !exists || (!anchor.is_empty() && !anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(followed > 50, "{followed} links were followed");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The files that a page names: code spans that end as a source does.
fn files(page: &str) -> Vec<&str> {
    let spans = prose(page).flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter(|span| span.ends_with(".rs")).collect()
}

#[test]
fn every_file_on_a_message_s_way_exists() {
    let page = read(Path::new("docs/life-of-a-message.md"));
    let files = files(&page);
    assert!(files.len() > 15, "{} files are named", files.len());
    let missing = files.into_iter().filter(|file| !root().join(file).exists());
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn what_is_broken_is_noticed() {
    let page = "# A title: of `two` parts\n[a](b.md#c) ![d](e.jpg) [web](https://example.com)\n\
                ```rust\nlet x = [f](g);\n# not a title\n```\n`queue-core/src/lib.rs`, `submit`\n";
    assert_eq!(links(page), ["b.md#c", "e.jpg"]);
    let anchors: Vec<_> = anchors(page).into_iter().collect();
    assert_eq!(anchors, ["a-title-of-two-parts"]);
    assert_eq!(files(page), ["queue-core/src/lib.rs"]);
}

/// Adds the public errors that the Rust sources below a folder define.
fn errors(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            errors(&path, found);
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source");
        let public = source.lines().filter_map(|line| {
            let rest = line.strip_prefix("pub struct ");
            rest.or_else(|| line.strip_prefix("pub enum "))
        });
        let ends = |c: char| !c.is_alphanumeric();
        let names = public.filter_map(|rest| rest.split(ends).next());
        let errors = names.filter(|name| name.ends_with("Error"));
        found.extend(errors.map(str::to_owned));
    }
}

#[test]
fn every_public_error_is_in_the_list() {
    let list = read(Path::new("queue-runtime/src/docs/errors.md"));
    let mut found = BTreeSet::new();
    for package in [
        "queue-core",
        "queue-runtime",
        "backends/nats",
        "tools/agent",
    ] {
        errors(&root().join(package).join("src"), &mut found);
    }
    assert!(found.len() > 20, "{found:?}");
    found.retain(|name| !list.contains(&format!("`{name}`")));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn the_readme_shows_this_program() {
    let readme = read(Path::new("README.md"));
    let program = read(Path::new("examples/hello/src/main.rs"));
    let block = format!("```rust,no_run\n{program}```\n");
    assert!(
        readme.contains(&block),
        "README.md must show examples/hello/src/main.rs, word for word:\n\n{block}"
    );
}

/// The types that a file makes public by `pub use`.
fn re_exported(source: &str, module: &str) -> BTreeSet<String> {
    let uses = source.split("pub use ").skip(1);
    let lists = uses.filter_map(|rest| rest.split_once(';').map(|(list, _)| list));
    let lists = lists.filter(|list| list.starts_with(module));
    let words = lists.flat_map(|list| list.split(|c: char| !(c.is_alphanumeric() || c == '_')));
    let types = words.filter(|word| word.starts_with(|c: char| c.is_uppercase()));
    types.map(str::to_owned).collect()
}

/// An application needs no other package for its own backend.
#[test]
fn every_type_of_a_backend_s_contract_is_in_the_runtime() {
    let read = |path| fs::read_to_string(root().join(path)).expect("a source");
    let contract = re_exported(&read("queue-core/src/backend/mod.rs"), "");
    let own = re_exported(
        &read("queue-runtime/src/backend/mod.rs"),
        "queue_core::backend",
    );
    assert!(contract.len() > 40, "{contract:?}");
    let missing: Vec<_> = contract.difference(&own).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
