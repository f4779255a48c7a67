//! Programs in other languages, each with Microsoft's package for its language.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::server::connection_string;

/// Has `peer.py` carry out a request, and gives its answer.
pub(crate) fn ask(request: &Value) -> Value {
    run("peer.py", &connection_string(), &request.to_string())
}

/// Runs a program of this folder with the queues of an account and this input, and gives what it prints.
pub(crate) fn run(program: &str, connection_string: &str, request: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/interop")
        .join(program);
    let mut process = command(&path)
        .env("CONNECTION_STRING", connection_string)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("start {program}: {error}"));
    let mut input = process.stdin.take().expect("its input is piped");
    let written = input.write_all(request.as_bytes());
    drop(input);
    let ended = process.wait_with_output().expect("its output is read");
    assert!(
        ended.status.success(),
        "{program}: {request}: {}",
        ended.status
    );
    written.expect("it read the request");
    serde_json::from_slice(&ended.stdout).expect("an answer in JSON")
}

/// Returns the command that runs a program in Python or JavaScript.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = match program.extension() {
        Some(extension) if extension == "py" => python(program),
        _ => node(program),
    };
    command.env("NO_PROXY", "127.0.0.1");
    command
}

fn python(program: &Path) -> Command {
    let given = std::env::var_os("INTEROP_PYTHON").map(PathBuf::from);
    let python = given.unwrap_or_else(|| installed("interop").join("bin/python"));
    // A link to the interpreter is what tells it where its packages are: it is not resolved.
    assert!(
        python.exists(),
        "no Python at {}; `cargo xtask test` makes an environment with the packages, or set \
         INTEROP_PYTHON to a Python that has those of `tests/interop/requirements.txt`",
        python.display()
    );
    let mut command = Command::new(python);
    // Nothing from the surroundings but what the environment has installed.
    command.args(["-I", "-B"]).arg(program);
    command
}

fn node(program: &Path) -> Command {
    let folder = installed("storage-queue");
    assert!(
        folder.exists(),
        "no packages of Node.js at {}; `cargo xtask test` installs them",
        folder.display()
    );
    let source = std::fs::read_to_string(program).expect("a program");
    let mut command = Command::new("node");
    // Node.js looks for the packages of a file in the file's folder, and for those of a text in the current one.
    command
        .args(["--input-type=module", "--eval", &source, "--"])
        .current_dir(folder);
    command
}

/// Returns the folder in the target directory in which `cargo xtask` installs the packages of a language.
fn installed(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name(folder)
}
