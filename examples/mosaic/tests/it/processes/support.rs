//! Processes of the program, and a job for them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pictures::Picture;
use tempfile::TempDir;

/// A timeout that only a hang reaches, on the slowest machine too.
pub(crate) const GUARD: Duration = Duration::from_secs(1800);

/// Where queues and blobs are in a test.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    /// Arguments on the command line.
    pub(crate) arguments: Vec<String>,
    /// Environment variables.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Location {
    /// A folder.
    pub(crate) fn folder(data: &Path) -> Self {
        Self {
            arguments: vec!["--data".to_owned(), text(data)],
            variables: Vec::new(),
        }
    }
}

/// The program with arguments, unaffected by the environment of this process.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mosaic"));
    command
        .args(arguments)
        .env_remove("QUEUE_URL")
        .env_remove("BLOBS_URL")
        .env("RUST_LOG", "mosaic=info,warn")
        .stdin(Stdio::null());
    command
}

/// Runs the program to its end, with a timeout that is enough for a job.
pub(crate) fn output(program: &mut Command) -> Output {
    let timeout = format!("{}s", GUARD.as_secs());
    let program = program.args(["--timeout", &timeout]);
    program.output().expect("the program runs")
}

/// A picture and tiles in a temporary folder.
pub(crate) fn pictures() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let scene = Picture::scene(240, 160).to_png();
    fs::write(folder.path().join("scene.png"), scene).expect("written");
    fs::create_dir(folder.path().join("tiles")).expect("made");
    for n in 0..150_u8 {
        let near = [n.wrapping_mul(83), n.wrapping_mul(151), n.wrapping_mul(37)];
        let far = [n.wrapping_mul(59), n.wrapping_mul(101), n.wrapping_mul(193)];
        let tile = Picture::from_fn(16, 16, |x, y| if x + y < 16 { near } else { far });
        let path = folder.path().join(format!("tiles/{n}.png"));
        fs::write(path, tile.to_png()).expect("written");
    }
    folder
}

/// The program with a job of 64 slices.
pub(crate) fn job(command: &str, pictures: &Path, location: &Location, out: &Path) -> Command {
    let mut program = program(&[command]);
    program.args(&location.arguments);
    program.envs(location.variables.clone());
    for (name, value) in [
        ("--image", text(&pictures.join("scene.png"))),
        ("--library", text(&pictures.join("tiles"))),
        ("--out", text(out)),
        ("--across", "96".to_owned()),
        ("--tile-size", "8".to_owned()),
        ("--slices", "64".to_owned()),
    ] {
        program.args([name.to_owned(), value]);
    }
    program
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

pub(crate) fn signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status();
    assert!(sent.expect("kill runs").success());
}

/// A role in its own process, and the thread that reads its log. The process is killed when this is dropped.
pub(crate) struct Worker {
    pub(crate) child: Child,
    log: Option<JoinHandle<Log>>,
    seen: Arc<Seen>,
}

/// What a process has logged so far.
#[derive(Debug, Default)]
struct Seen {
    /// Messages in flight.
    held: AtomicUsize,
    /// Messages that were handled.
    handled: AtomicUsize,
    /// Whether the process has noticed a signal to stop.
    stopping: AtomicBool,
}

/// The log of a process that has ended.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Messages in flight at the end.
    pub(crate) held: usize,
    /// Messages that were handled.
    pub(crate) handled: usize,
    /// Responses recorded.
    pub(crate) recorded: usize,
    /// Warnings, errors and `stopped` lines.
    pub(crate) remarks: Vec<String>,
}

impl Worker {
    pub(crate) fn start(role: &str, location: &Location, more: &[&str]) -> Self {
        let mut command = program(&["role", role]);
        command.args(&location.arguments).args(more);
        command.envs(location.variables.clone());
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let log = child.stderr.take().expect("it is piped");
        let seen = Arc::new(Seen::default());
        let log = Some(thread::spawn({
            let seen = Arc::clone(&seen);
            move || read(log, &seen)
        }));
        Self { child, log, seen }
    }

    /// Whether the process has a message in flight.
    pub(crate) fn holds(&self) -> bool {
        self.seen.held.load(Relaxed) > 0
    }

    /// How many messages the process has handled.
    pub(crate) fn handled(&self) -> usize {
        self.seen.handled.load(Relaxed)
    }

    /// Whether the process has noticed a signal to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.seen.stopping.load(Relaxed)
    }

    /// Kills the process and reads its log to the end.
    pub(crate) fn kill(mut self) -> Log {
        self.child.kill().expect("it is a child of ours");
        self.child.wait().expect("it is a child of ours");
        self.log()
    }

    /// Reads the log of a process that ends.
    pub(crate) fn log(&mut self) -> Log {
        let log = self.log.take().expect("it was not taken");
        log.join().expect("the reader does not panic")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stderr: ChildStderr, seen: &Seen) -> Log {
    let mut log = Log::default();
    for line in BufReader::new(stderr).lines() {
        let line = line.expect("logs are text");
        if line.contains(": handling queue=") {
            log.held += 1;
            seen.held.store(log.held, Relaxed);
        } else if line.contains(": handled queue=") {
            log.held -= 1;
            log.handled += 1;
            seen.held.store(log.held, Relaxed);
            seen.handled.store(log.handled, Relaxed);
        } else if line.contains(": stopping;") {
            seen.stopping.store(true, Relaxed);
        } else if line.contains(": recorded the response") {
            log.recorded += 1;
        } else if !line.contains(" INFO ") || line.contains(": stopped ") {
            log.remarks.push(line);
        }
    }
    log
}
