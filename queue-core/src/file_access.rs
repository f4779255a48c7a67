//! Who may use a file, for the error of a process that may not.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Returns who may use a file, to follow its name in the error of a process that may not. Empty for any other error.
#[must_use]
pub fn file_access(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => owner_and_user(path),
        _ => String::new(),
    }
}

/// Returns the owner and the mode of a file, the user of this process, and what helps. Of a file that is missing or cannot
/// be seen, those of the folder that is the reason. Empty where files have none.
#[must_use]
pub fn owner_and_user(path: &Path) -> String {
    // The last folder of a relative path is the current one.
    let here = Some(Path::new(".")).filter(|_| path.is_relative());
    let mut folders = path.ancestors().chain(here);
    let found = folders.find_map(|folder| Some((folder, fs::metadata(folder).ok()?)));
    found.map_or_else(String::new, |(path, metadata)| describe(path, &metadata))
}

#[cfg(unix)]
fn describe(path: &Path, metadata: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt as _;

    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let (what, needed) = if metadata.is_dir() {
        ("folder", "u+rwx")
    } else {
        ("file", "u+rw")
    };
    let path = path.display();
    let named = name(owner);
    // A directory of the kernel's that belongs to the user of this process.
    let user = fs::metadata("/proc/self").map(|own| own.uid());
    let remedy = match user {
        Ok(user) if user == owner => {
            format!("and this process runs as its owner: allow it by `chmod {needed} {path}`")
        }
        Ok(user) => format!(
            "and this process runs as {}: run it as {named}, or give it the {what} by `chown {user} {path}`",
            name(user)
        ),
        Err(_) => format!("and this process runs as another user: run it as {named}"),
    };
    format!(": the {what} `{path}` belongs to {named} and has mode {mode:04o}, {remedy}")
}

#[cfg(not(unix))]
fn describe(_: &Path, _: &Metadata) -> String {
    String::new()
}

/// Returns a user's name and number, or the number alone if this machine has no name for it.
#[cfg(unix)]
fn name(user: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = user.to_string();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then_some(name)
    });
    named.map_or_else(
        || format!("user {number}"),
        |name| format!("user {number} ({name})"),
    )
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_owner_the_mode_the_user_and_a_remedy_are_named() {
        let root = owner_and_user(Path::new("/missing/queue.db"));
        assert!(
            root.contains("the folder `/` belongs to user 0 (root) and has mode 0"),
            "{root}"
        );
        assert!(root.contains("this process runs as"), "{root}");
        assert!(owner_and_user(Path::new("queue.db")).contains("folder `.`"));
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(
            file_access(Path::new("/missing"), &denied),
            owner_and_user(Path::new("/missing"))
        );
        let other = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(file_access(Path::new("/missing"), &other), "");
    }
}
