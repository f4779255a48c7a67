//! What programs print.

use std::fs;

/// Returns what a program prints, as the block in its documentation says.
pub(crate) fn output(program: &str) -> String {
    let path = format!("{}/src/bin/{program}.rs", env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string(path).expect("its source");
    let block = source.split_once("//! ```text\n").expect("a block").1;
    let block = block.split_once("//! ```\n").expect("the block's end").0;
    let lines = block.lines().map(|line| line.trim_start_matches("//! "));
    lines.map(|line| format!("{line}\n")).collect()
}
