use std::process::Command;

use crate::program::{is_installed, run};

/// Has root's `apt-get` install a package.
pub(crate) fn install(package: &str) -> Result<(), String> {
    if !is_root() || !is_installed("apt-get") {
        return Err("only root can have `apt-get` install it".to_owned());
    }
    eprintln!("   installing Debian's package {package}");
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut apt, &format!("run `apt-get {}`", arguments.join(" ")))
    };
    apt(&["update", "--quiet"])?;
    apt(&[
        "install",
        "--quiet",
        "--yes",
        "--no-install-recommends",
        package,
    ])
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
