use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo;
use crate::program::run;

/// The release that `deny.toml` was written for.
const VERSION: &str = "0.20.2";

/// Makes sure that cargo finds this release of `cargo-deny`, which is built below the target directory if the path has
/// none. Returns the reason if there is none.
pub(crate) fn ensure_installed() -> Result<(), String> {
    if is_this_release() {
        return Ok(());
    }
    let root = root();
    eprintln!("   building cargo-deny {VERSION} in {}", root.display());
    let mut install = cargo::command();
    install
        .args(["install", "--locked", "--quiet", "--debug", "--force"])
        .args(["cargo-deny", "--version", VERSION, "--root"])
        .arg(&root)
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    run(&mut install, "install cargo-deny with cargo")?;
    if is_this_release() {
        Ok(())
    } else {
        Err(format!(
            "failed to install cargo-deny {VERSION} in {}",
            root.display()
        ))
    }
}

/// The `PATH` with which cargo finds `cargo-deny`.
pub(crate) fn path() -> OsString {
    let given = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(programs()).chain(env::split_paths(&given));
    env::join_paths(all).unwrap_or(given)
}

/// Where `cargo-deny` is installed.
pub(crate) fn programs() -> PathBuf {
    root().join("bin")
}

fn root() -> PathBuf {
    cargo::target().join("tools")
}

fn is_this_release() -> bool {
    let mut deny = Command::new("cargo-deny");
    let version = deny.arg("--version").env("PATH", path()).output();
    let wanted = format!("cargo-deny {VERSION}");
    version.is_ok_and(|version| version.stdout.trim_ascii() == wanted.as_bytes())
}
