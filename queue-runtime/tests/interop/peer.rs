//! `peer.py`, asked one thing at a time.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::server::connection_string;

/// Has the other program carry out a request, and gives its answer.
pub(crate) fn ask(request: &Value) -> Value {
    run("peer.py", &request.to_string())
}

/// Runs a program with this input, and gives what it prints.
pub(crate) fn run(script: &str, request: &str) -> Value {
    let python = python();
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/interop")
        .join(script);
    let mut process = Command::new(&python)
        // Nothing from the surroundings but what the environment has installed.
        .args(["-I", "-B"])
        .arg(script)
        .env("CONNECTION_STRING", connection_string())
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("start {}: {error}", python.display()));
    let mut input = process.stdin.take().expect("its input is piped");
    let written = input.write_all(request.as_bytes());
    drop(input);
    let ended = process.wait_with_output().expect("its output is read");
    assert!(ended.status.success(), "{request}: {}", ended.status);
    written.expect("it read the request");
    serde_json::from_slice(&ended.stdout).expect("an answer in JSON")
}

fn python() -> PathBuf {
    let given = std::env::var_os("INTEROP_PYTHON").map(PathBuf::from);
    let installed = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .with_file_name("interop")
        .join("bin/python");
    let python = given.unwrap_or(installed);
    // A link to the interpreter is what tells it where its packages are: it is not resolved.
    assert!(
        python.exists(),
        "no Python at {}; `cargo xtask test` makes an environment with the packages, or set \
         INTEROP_PYTHON to a Python that has those of `tests/interop/requirements.txt`",
        python.display()
    );
    python
}
