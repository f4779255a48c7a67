//! A process of a suite, which is killed when its handle is dropped, and ends by itself, at the end of its input, if
//! the test's process is killed.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::ledger::moment;
use crate::worker::{Arguments, Role};

/// A timeout that only a hang reaches, on the slowest machine too.
pub const GUARD: Duration = Duration::from_secs(300);

/// A running process.
#[derive(Debug)]
pub struct Process {
    /// What the process does.
    pub role: Role,
    /// The process's number.
    pub number: u64,
    /// Since when the process is stopped, on the clock of [`moment`].
    pub stopped: Option<u64>,
    child: Child,
    stdin: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    errors: PathBuf,
}

impl Process {
    /// Starts a process; sends its number with each line that it prints.
    ///
    /// # Panics
    /// If the process does not start.
    #[must_use]
    pub fn start(program: &Path, arguments: &Arguments, lines: Sender<(u64, String)>) -> Self {
        let errors = arguments.ledger.with_extension("stderr");
        let mut command = arguments.command(program);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).expect("a file"))
            // A group of its own, so that the system ends the process even if it is stopped when the test is killed.
            .process_group(0)
            .spawn()
            .expect("the program runs");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let number = arguments.number;
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = lines.send((number, line));
            }
        });
        Self {
            role: arguments.role,
            number,
            stopped: None,
            stdin: child.stdin.take(),
            child,
            reader: Some(reader),
            errors,
        }
    }

    /// Writes a line to the standard input.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it was not told to end");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Sends SIGSTOP.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        self.stopped = Some(moment());
    }

    /// Sends SIGCONT.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.stopped = None;
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        // The id is still the process's: nobody has waited for it.
        kill_process(id, signal).expect("it is a child of ours");
    }

    /// Whether the process has ended by itself.
    ///
    /// # Panics
    /// If the system does not tell.
    pub fn has_ended(&mut self) -> bool {
        let status = self.child.try_wait().expect("it is a child of ours");
        status.is_some()
    }

    /// Kills the process, and returns what it wrote to the standard error.
    #[must_use]
    pub fn kill(mut self) -> String {
        self.end_now();
        self.complaints()
    }

    /// Ends the input, waits until the process has ended, and returns its status and what it wrote to the standard
    /// error.
    ///
    /// # Panics
    /// If the process does not end.
    #[must_use]
    pub fn finish(mut self) -> (ExitStatus, String) {
        drop(self.stdin.take());
        self.wait()
    }

    /// Waits until the process has ended by itself, as [`finish`](Self::finish) does.
    ///
    /// # Panics
    /// If the process does not end.
    #[must_use]
    pub fn wait(mut self) -> (ExitStatus, String) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is a child of ours") {
                break status;
            }
            assert!(started.elapsed() < GUARD, "the {} does not end", self.role);
            std::thread::sleep(Duration::from_millis(5));
        };
        self.end_now();
        (status, self.complaints())
    }

    fn end_now(&mut self) {
        // Both calls fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
    }

    fn complaints(&self) -> String {
        std::fs::read_to_string(&self.errors).expect("its standard error")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Kills a stopped process too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
