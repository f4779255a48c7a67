//! An agent that starts and stops processors.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use tempfile::TempDir;

use super::kill::Client;
use super::support::{GUARD, Location, Worker, pictures, program, signal};

/// The supervisor, with the lines of its log and of those that it starts. Killed when this is dropped.
struct Supervisor {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Supervisor {
    fn start(location: &Location) -> Self {
        let mut command = program(&[
            "role",
            "processor",
            "--instances",
            "1..3",
            "--within",
            "1s",
            "--steady",
            "1s",
        ]);
        command.args(["--tasks", "1", "--pace", "1s", "--visibility-timeout", "2s"]);
        command
            .args(["--poison-threshold", "1000"])
            .args(&location.arguments);
        command.env("RUST_LOG", "info");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
        let log = BufReader::new(child.stderr.take().expect("it is piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Reads the log until something is so.
    fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is(self) {
            let left = GUARD.saturating_sub(begun.elapsed());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("timed out: {what}"));
            self.seen.push(line);
        }
    }

    /// The lines about instances that have started, died or stopped.
    fn told(&self, what: &str) -> impl Iterator<Item = &String> {
        self.seen.iter().filter(move |line| line.contains(what))
    }

    fn started(&self) -> usize {
        self.told(": started an instance").count()
    }

    fn died(&self) -> usize {
        self.told(": an instance has died").count()
    }

    fn running(&self) -> usize {
        self.started() - self.died() - self.told(": an instance has stopped").count()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Both fail only if it has already ended. The others end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn instances_follow_the_load_and_are_replaced_when_they_die() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let data = scratch.path().join("data");
    std::fs::create_dir(&data).expect("made");
    let location = Location::folder(&data);
    let _controller = Worker::start("controller", &location, &[]);
    let _broker = Worker::start("broker", &location, &[]);
    let mut supervisor = Supervisor::start(&location);
    let out = scratch.path().join("out.png");
    let client = Client::submit(pictures.path(), &location, &out);

    supervisor.until("there are three", |s| s.running() == 3);
    let started = supervisor.told(": started an instance").next();
    let (_, id) = started
        .and_then(|line| line.split_once("id="))
        .expect("an id");
    let id = id.split([' ', '"']).find(|id| !id.is_empty());
    let id = id.expect("a number").to_owned();
    let killed = Command::new("kill").args(["-KILL", &id]).status();
    assert!(killed.expect("kill runs").success());
    supervisor.until("one has died", |s| s.died() >= 1);
    let is_of_killed = |line: &String| line.contains(&id);
    let died = supervisor.told(": an instance has died").any(is_of_killed);
    assert!(died, "{id} was killed");
    supervisor.until("it is replaced", |s| s.started() >= 4);

    let stdout = client.output();
    assert!(stdout.contains("made in"), "{stdout}");
    supervisor.until("the others stop", |s| s.running() == 1);

    signal(&supervisor.child, "-TERM");
    assert!(supervisor.child.wait().expect("a child of ours").success());
}
