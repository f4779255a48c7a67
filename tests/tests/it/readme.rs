//! The README shows a program that runs: `examples/hello`.

use std::fs;
use std::path::Path;

#[test]
fn the_readme_shows_this_program() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let readme = fs::read_to_string(root.join("README.md")).expect("readable");
    let program = fs::read_to_string(root.join("examples/hello/src/main.rs")).expect("readable");
    let block = format!("```rust,no_run\n{program}```\n");
    assert!(
        readme.contains(&block),
        "README.md must show examples/hello/src/main.rs, word for word:\n\n{block}"
    );
}
