//! On a full disk nothing can be put, and everything can be received and settled.
//!
//! The disk is a small file system in memory, which only the worker sees: it is mounted in a namespace of its own.
//! That needs Linux, and a user who may create one.

#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::Command;

use queue_crash::worker::{Arguments, Role};
use tempfile::TempDir;

#[test]
fn everything_can_be_completed_while_the_disk_is_full() {
    let folder = TempDir::new().expect("a folder");
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).expect("created");
    let arguments = Arguments {
        role: Role::FullDisk,
        file: disk.join("queues.db"),
        ledger: folder.path().join("0.ledger"),
        number: 0,
        seed: 0,
        bug: None,
        environment: Vec::new(),
    };
    let program = PathBuf::from(env!("CARGO_BIN_EXE_crash-worker"));
    let worker = arguments.command(&program);
    let mount = r#"mount -t tmpfs -o size=18m tmpfs "$0" && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mount])
        .arg(&disk)
        .arg(&program)
        .args(worker.get_args())
        .output()
        .expect("unshare is installed");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaints}", output.status);
}
