use std::path::{Path, PathBuf};
use std::process::Command;

/// The cargo that runs this program, and so the pinned toolchain's, at the root of the workspace.
pub(crate) fn command() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let mut command = Command::new(cargo);
    command.current_dir(root.expect("this package lies below the workspace"));
    command
}

/// Where cargo builds, and what the tests need is installed.
pub(crate) fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    chosen.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"))
}
