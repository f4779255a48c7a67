//! Files that belong to another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Ran, Storage};

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Takes a file from the user who runs the program, as a command of root's does that creates it.
fn take_away(path: &Path, mode: u32) {
    if is_root() {
        chown(path, Some(0), Some(0)).expect("ours");
    }
    // Where the test is no root, the file has the right owner and the wrong mode.
    let mode = if is_root() { mode } else { 0 };
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

/// A folder of the service's user, and the program, which it can run.
struct Service {
    storage: Storage,
    program: PathBuf,
}

impl Service {
    async fn new() -> Self {
        let storage = Storage::new();
        storage.submit(0..3).await;
        let program = storage.path("queues");
        // By another process: one that another test starts meanwhile would have this one's file open for writing, and so
        // keep it from being run.
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_queues")).arg(&program);
        assert!(copy.status().expect("it runs").success());
        let service = Self { storage, program };
        service.give(service.storage.folder.path(), 0o700);
        for name in ["queues", "shop.db", "shop.db-wal", "shop.db-shm"] {
            service.give(&service.storage.path(name), 0o700);
        }
        service
    }

    fn give(&self, path: &Path, mode: u32) {
        if path.exists() {
            if is_root() {
                chown(path, Some(NOBODY), Some(NOBODY)).expect("given");
            }
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        }
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], path: &Path, mode: u32) {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("QUEUE_URL", &self.storage.url);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.current_dir("/").output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let ran = Ran {
            code: output.status.code().expect("it ended by itself"),
            out: text(output.stdout),
            error: text(output.stderr),
        };
        assert_eq!(ran.code, 1, "{arguments:?}: {ran:?}");
        let path = path.display();
        let said = if is_root() {
            format!(
                "`{path}` belongs to user 0 (root) and has mode {mode:04o}, and this process runs as user 65534"
            )
        } else {
            format!("`{path}` belongs to user")
        };
        assert!(ran.error.contains(&said), "{said}: {ran:?}");
        let remedy = if is_root() {
            "chown 65534"
        } else {
            "chmod u+rw"
        };
        assert!(ran.error.contains(remedy), "{remedy}: {ran:?}");
        assert!(!ran.error.contains("credentials"), "{ran:?}");
        assert!(!ran.error.contains("host"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_file_of_another_user_is_named_with_what_helps() {
    for name in ["shop.db", "shop.db-wal"] {
        for mode in [0o600, 0o644] {
            let service = Service::new().await;
            let path = service.storage.path(name);
            if !path.exists() {
                fs::write(&path, "").expect("written");
            }
            take_away(&path, mode);
            service.refused(&["list"], &path, mode);
            service.refused(&["submit", "orders", "--kind", "order", "{}"], &path, mode);
        }
    }
    let service = Service::new().await;
    let export = service.storage.path("orders.jsonl");
    let text = export.to_str().expect("text");
    service.storage.out(&["export", "orders", text]);
    take_away(&export, 0o600);
    for arguments in [
        &["import", text][..],
        &["submit", "orders", "--kind", "order", "--file", text],
        &["export", "orders", text, "--append"],
        &["export", "orders", text, "--append", "--move", "--yes"],
    ] {
        service.refused(arguments, &export, 0o600);
    }
    let folder = service.storage.path("folder");
    fs::create_dir(&folder).expect("created");
    take_away(&folder, 0o700);
    let new = folder.join("new");
    let new = new.to_str().expect("text");
    for arguments in [
        &["export", "orders", new][..],
        &["backup", new],
        &["--url", &format!("sqlite:{new}"), "create", "orders"],
        &["--url", &format!("sqlite:{new}"), "list"],
        &["--payload-folder", new, "export", "orders"],
    ] {
        service.refused(arguments, &folder, 0o700);
    }
    service.give(&folder, 0o700);
}
