//! The broker's page in a browser: runs the tests in JavaScript that are beside this file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The names of Chromium, in the order in which they are looked for in the path.
const NAMES: &str = include_str!("chromium.txt");

#[test]
fn the_page_in_a_browser() {
    let folder = installed();
    let playwright = folder.join("node_modules/playwright-core/index.mjs");
    let pictures = folder.join("pictures");
    if pictures.exists() {
        std::fs::remove_dir_all(&pictures).expect("those of an earlier run are removed");
    }
    std::fs::create_dir_all(&pictures).expect("a folder");
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser");
    let beside = std::fs::read_dir(beside).expect("a folder");
    let paths = beside.map(|entry| entry.expect("an entry").path());
    let mut suites: Vec<_> = paths
        .filter(|path| path.to_string_lossy().ends_with(".test.mjs"))
        .collect();
    suites.sort();
    let mut node = Command::new("node");
    // They mostly wait.
    node.args(["--test", "--test-reporter=spec", "--test-concurrency=2"])
        .args(&suites)
        .env("MOSAIC", env!("CARGO_BIN_EXE_mosaic"))
        .env("PLAYWRIGHT", playwright)
        .env("CHROMIUM", chromium())
        .env("PICTURES", pictures);
    for elsewhere in ["QUEUE_URL", "BLOBS_URL", "NATS_URL"] {
        node.env_remove(elsewhere);
    }
    let status = node.status().expect("Node.js is installed");
    assert!(status.success(), "{status}; what failed is above");
}

/// The folder in the target directory in which `cargo xtask` installed what drives the browser.
fn installed() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    let mut folders = this.ancestors().map(|folder| folder.join("browser"));
    let found = folders.find(|folder| folder.join("node_modules/playwright-core").is_dir());
    found.expect("playwright-core is not installed: `cargo xtask test --all` installs it")
}

/// The browser that `CHROMIUM` names, or one in the path.
fn chromium() -> PathBuf {
    let runs = |path: &Path| {
        let mut version = Command::new(path);
        version.arg("--version");
        version.stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    let given = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut named = NAMES
        .lines()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
    let found = given.or_else(|| named.find(|path| runs(path)));
    found.expect("Chromium is not installed: install it, or set CHROMIUM to the program")
}
