//! Signals to processes that wait for them: this program again, in a role.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use queue_runtime::service::StopSignals;
use queue_runtime::{QueueService, Received};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::{Builder, Runtime};

use crate::support::jobs::{Job, submit_jobs};
use crate::support::{GUARD, NEVER};

const ROLE: &str = "STOP_SIGNALS_ROLE";

/// A program in a role, ended with the test.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it by a command that ends in the words that start it, and waits until it is ready.
    fn start(mut by: Command, role: &str) -> Self {
        by.arg(std::env::current_exe().expect("a program"));
        by.args([
            "--exact",
            "stop_signals::program",
            "--ignored",
            "--nocapture",
        ]);
        let mut child = by
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut program = Self { child, output };
        program.says("ready");
        program
    }

    fn plain(role: &str) -> Self {
        Self::start(Command::new("env"), role)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for a line.
    #[track_caller]
    fn says(&mut self, line: &str) {
        let mut lines = (&mut self.output).lines().map_while(Result::ok);
        // What the test harness says comes before.
        assert!(lines.any(|said| said.ends_with(line)), "{line}");
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is a child of ours")
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("it is a child of ours")
    }

    /// Sends a signal again and again until it has ended.
    fn end_by(&mut self, signal: Signal) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(begun.elapsed() < GUARD, "it does not end");
            self.signal(signal);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn never_ends() {
    loop {
        std::thread::park();
    }
}

/// A job whose handler never yields.
async fn stuck(service: &QueueService) {
    submit_jobs(service, 1).await;
    let never = async |_: Received<Job>| {
        println!("handling");
        never_ends();
    };
    service.listener(never).start().expect("starts");
}

async fn told() {
    let mut signals = StopSignals::new().expect("handled");
    println!("ready");
    loop {
        println!("told {}", signals.next().await);
    }
}

async fn stopped(grace: Duration) {
    let service = QueueService::connect("memory:").await.expect("opens");
    let shutdown = service.shutdown_on_signal(grace).expect("handled");
    println!("ready");
    stuck(&service).await;
    shutdown.await;
    println!("stopped");
}

#[test]
#[ignore = "the program that the other tests start"]
fn program() {
    let workers = || Runtime::new().expect("a runtime");
    let alone = || Builder::new_current_thread().enable_all().build();
    match std::env::var(ROLE).as_deref() {
        Ok("told") => workers().block_on(told()),
        // A handler takes one of the workers.
        Ok("stuck worker") => workers().block_on(stopped(Duration::ZERO)),
        // A handler takes the only thread.
        Ok("stuck thread") => alone().expect("a runtime").block_on(stopped(NEVER)),
        Ok("dropped") => {
            drop(StopSignals::new().expect("handled"));
            println!("ready");
            never_ends();
        }
        other => panic!("it is started by the other tests only: {other:?}"),
    }
}

#[test]
fn each_signal_to_stop_is_told_and_the_second_one_ends_the_process() {
    for (signal, name) in [
        (Signal::TERM, "SIGTERM"),
        (Signal::INT, "SIGINT"),
        (Signal::HUP, "SIGHUP"),
        (Signal::QUIT, "SIGQUIT"),
        #[cfg(target_os = "linux")]
        (Signal::POWER, "SIGPWR"),
    ] {
        let mut program = Program::plain("told");
        program.signal(signal);
        program.says(&format!("told {name}"));
        if signal == Signal::TERM {
            program.signal(Signal::INT);
            program.says("told SIGINT");
            // It goes on, and is ended.
            let status = program.end();
            assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
        }
    }
}

#[test]
fn a_process_whose_handler_never_yields_is_ended_by_a_further_signal() {
    // Its grace period is over, and its runtime waits for the handler.
    let mut worker = Program::plain("stuck worker");
    worker.says("handling");
    worker.signal(Signal::TERM);
    worker.says("stopped");
    let status = worker.end_by(Signal::TERM);
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    // It notices nothing any more.
    let mut thread = Program::plain("stuck thread");
    thread.says("handling");
    let status = thread.end_by(Signal::TERM);
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    // The second one comes at once, and no third.
    let mut hasty = Program::plain("stuck thread");
    hasty.says("handling");
    hasty.signal(Signal::TERM);
    hasty.signal(Signal::INT);
    let status = hasty.end();
    // They may be heard in another order.
    let either = [Signal::TERM, Signal::INT].map(|signal| Some(signal.as_raw()));
    assert!(either.contains(&status.signal()), "{status}");
}

#[test]
fn a_signal_has_its_default_action_when_nobody_waits_for_it_any_more() {
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut program = Program::plain("dropped");
        program.signal(signal);
        let status = program.end();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let mut nohup = Command::new("sh");
    nohup.args(["-c", r#"trap "" HUP; exec "$0" "$@""#]);
    let mut program = Program::start(nohup, "told");
    // Signals that are sent one after the other may be told in another order.
    let status = format!("/proc/{}/status", program.child.id());
    let status = std::fs::read_to_string(status).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("told").trim(), 16).expect("bits");
    assert_eq!(ignored & 1, 1, "SIGHUP is not ignored: {status}");
    program.signal(Signal::HUP);
    program.signal(Signal::TERM);
    program.says("told SIGTERM");
}

/// The kernel gives the first process of a container no default actions.
#[cfg(target_os = "linux")]
#[test]
fn the_first_process_of_a_container_ends_too() {
    let Some(container) = queue_tests::in_namespaces(&["--pid", "--fork"]) else {
        return;
    };
    let mut program = Program::start(container, "dropped");
    let first = queue_tests::only_child(program.child.id());
    kill_process(Pid::from_raw(first).expect("it is one"), Signal::TERM).expect("it runs");
    assert_eq!(program.end().code(), Some(128 + Signal::TERM.as_raw()));
}
