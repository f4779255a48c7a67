//! The program takes an order, handles it, answers health checks, and stops on SIGTERM.

#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Long enough for the slowest machine; only a hang meets it.
const GUARD: Duration = Duration::from_secs(60);

/// The program on a free port, ended with the test.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Program {
    fn start(url: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_web"))
            .env("QUEUE_URL", url)
            .env("ADDRESS", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let line = next_line(&mut output);
        let address = line.strip_prefix("listening on http://").expect(&line);
        Self {
            address: address.to_owned(),
            child,
            output,
        }
    }

    /// Sends a request, and returns the status and the body of the answer.
    fn request(&self, line: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(GUARD)).expect("it is set");
        let length = body.len();
        write!(
            stream,
            "{line} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status");
        (status.parse().expect("a number"), body.to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next_line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("it is text");
    line.trim_end().to_owned()
}

#[test]
fn it_takes_orders_is_healthy_and_stops_on_sigterm() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("web.db").display());
    let mut program = Program::start(&url);
    for path in ["/healthz", "/readyz"] {
        let answer = program.request(&format!("GET {path}"), "");
        assert_eq!(answer, (200, "healthy".to_owned()), "{path}");
    }
    let (status, _) = program.request("POST /orders", r#"{"number": 7}"#);
    assert_eq!(status, 202);
    assert_eq!(next_line(&mut program.output), "shipped order 7");

    let pid = Pid::from_child(&program.child);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(
        next_line(&mut program.output),
        "stopped; 0 orders were handed back"
    );
    assert!(program.child.wait().expect("it ends").success());
}

#[test]
fn it_stops_on_every_signal_to_stop() {
    for signal in [Signal::INT, Signal::HUP, Signal::QUIT] {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("web.db").display());
        let mut program = Program::start(&url);
        kill_process(Pid::from_child(&program.child), signal).expect("it runs");
        let line = next_line(&mut program.output);
        assert_eq!(line, "stopped; 0 orders were handed back", "{signal:?}");
        assert!(program.child.wait().expect("it ends").success());
    }
}

/// The file is gone: the program says that it is not ready and why, and that it has to be restarted.
#[test]
fn it_asks_for_a_restart_without_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("web.db");
    let program = Program::start(&format!("sqlite:{}", path.display()));
    std::fs::remove_file(&path).expect("removed");
    // Once it has looked, which it does every second; only a hang is waited for as long.
    let answers = (0..1_200).map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        program.request("GET /readyz", "")
    });
    let mut unready = answers.filter(|(status, _)| *status == 503);
    let (_, text) = unready.next().expect("it says so");
    assert!(text.starts_with("queue `order` has failed for "), "{text}");
    let (status, text) = program.request("GET /healthz", "");
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("the program has to be restarted"), "{text}");
}
