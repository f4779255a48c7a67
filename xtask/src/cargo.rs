use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Returns a command of the cargo that runs this program, which is the pinned toolchain's, in the root
/// of the workspace.
pub(crate) fn command() -> Command {
    in_root(Command::new(program()))
}

/// Returns a [`command`] that leaves processors to programs of normal priority, such as tests with a deadline.
pub(crate) fn background() -> Command {
    if cfg!(not(unix)) {
        return command();
    }
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(program());
    in_root(nice)
}

fn in_root(mut command: Command) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    command.current_dir(root.expect("this package is below the root of the workspace"));
    if is_set("CI") {
        // CI builds nothing twice.
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Returns whether a variable is set, and neither empty, `0` nor `false`.
pub(crate) fn is_set(name: &str) -> bool {
    let value = std::env::var_os(name).unwrap_or_default();
    !(value.is_empty() || value == "0" || value == "false")
}

/// The cargo that runs this program.
pub(crate) fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns what a command prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output();
    let output = output.map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the name of the platform that the compiler runs on.
pub(crate) fn host() -> Result<String, String> {
    let lines = output(command().arg("-vV"))?;
    let host = lines.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "`cargo -vV` names no host".to_owned())
}

/// Runs a command to its end, and says if `what` has failed.
pub(crate) fn exit_code(command: &mut Command, what: &str) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("{what} failed: {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("failed to start cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns cargo's target directory, where the tests' servers are installed, too.
pub(crate) fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    chosen.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"))
}
