use std::process::Command;
#[cfg(unix)]
use std::time::{Duration, Instant};

use tempfile::TempDir;

#[cfg(unix)]
use crate::processes::support::{GUARD, Log, Worker, output, signal};
use crate::processes::support::{Location, job, pictures, program};

fn refused(command: &mut Command) -> String {
    let output = command.output().expect("the program runs");
    assert!(!output.status.success(), "{command:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn invalid_values_are_reported_with_what_is_allowed() {
    for (arguments, expected) in [
        (
            ["run", "--tile-size", "0"],
            "'0' for '--tile-size <N>': 0 is not in 1..=64",
        ),
        (
            ["run", "--tile-size", "65"],
            "'65' for '--tile-size <N>': 65 is not in 1..=64",
        ),
        (["submit", "--across", "2001"], "2001 is not in 1..=2000"),
        (["submit", "--slices", "0"], "0 is not in 1..=1000"),
        (["run", "--tint", "1.5"], "1.5 is not in 0 to 1"),
        (["run", "--processors", "0"], "0 is not in 1..=256"),
        (
            ["run", "--image", "missing.png"],
            "error: failed to make the mosaic: read `missing.png`: ",
        ),
        (
            ["role", "--queue=ftp:x", "broker"],
            "error: failed to run the role: failed to connect to the queue URL \"ftp:…\": its scheme is unknown",
        ),
        (
            ["role", "--blobs=sftp:x", "broker"],
            "failed to connect to the queue URL \"sftp:…\": its scheme is unknown",
        ),
        (
            ["role", "janitor", "--tasks=1"],
            "broker, controller, processor",
        ),
    ] {
        let error = refused(&mut program(&arguments));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn missing_roles_are_reported_after_the_timeout() {
    let (pictures, data) = (pictures(), TempDir::new().expect("a folder"));
    let (location, out) = (Location::folder(data.path()), data.path().join("out.png"));
    let mut submit = job("submit", pictures.path(), &location, &out);
    let error = refused(submit.args(["--timeout", "300ms"]));
    assert!(
        error.contains("are a broker, a controller and a processor running"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn roles_in_processes_make_the_mosaic_and_stop_on_a_signal() {
    let (pictures, data) = (pictures(), TempDir::new().expect("a folder"));
    let roles = ["broker", "controller", "processor", "processor"];
    let location = Location::folder(data.path());
    let workers = roles.map(|role| Worker::start(role, &location, &[]));
    let out = data.path().join("out.png");
    let submitted = output(&mut job("submit", pictures.path(), &location, &out));
    let stdout = String::from_utf8(submitted.stdout).expect("text");
    assert!(submitted.status.success(), "{stdout}");
    assert!(
        stdout.contains("768×512 pixels, 6144 tiles from 150 pictures, 64 slices"),
        "{stdout}"
    );
    assert!(out.exists());
    for worker in workers {
        let (success, log) = terminate(worker);
        assert!(success, "{log:?}");
        assert_eq!(log.held, 0);
        assert!(
            log.remarks.iter().any(|line| line.contains(": stopped ")),
            "{log:?}"
        );
    }
}

/// Sends SIGTERM to a process. Returns whether it exited successfully, and its log.
#[cfg(unix)]
fn terminate(mut worker: Worker) -> (bool, Log) {
    signal(&worker.child, "-TERM");
    let ended = worker.child.wait().expect("it is a child of ours");
    let log = worker.log();
    (ended.success(), log)
}

/// Waits until a process has done something, which it does not announce.
#[cfg(unix)]
fn until(what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < GUARD, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first signal lets a handler finish, which takes longer than this test. The next one has its message handed back.
#[cfg(unix)]
#[test]
fn a_second_signal_hands_messages_back_at_once_and_nothing_is_lost() {
    let (pictures, data) = (pictures(), TempDir::new().expect("a folder"));
    let location = Location::folder(data.path());
    let out = data.path().join("out.png");
    let _others = ["broker", "controller"].map(|role| Worker::start(role, &location, &[]));
    let slow = Worker::start(
        "processor",
        &location,
        &["--pace", "1h", "--visibility-timeout", "1h"],
    );
    let mut submit = job("submit", pictures.path(), &location, &out);
    let submitted = std::thread::spawn(move || output(&mut submit));
    until("it holds a message", || slow.holds());
    signal(&slow.child, "-TERM");
    until("it is stopping", || slow.is_stopping());
    let (success, log) = terminate(slow);
    assert!(success, "{log:?}");
    let said = |line: &String| line.contains(": stopped ") && !line.contains("released: 0");
    assert!(log.remarks.iter().any(said), "{log:?}");

    let _processor = Worker::start("processor", &location, &[]);
    let submitted = submitted.join().expect("no panic");
    let error = String::from_utf8(submitted.stderr).expect("text");
    assert!(submitted.status.success() && out.exists(), "{error}");
}
