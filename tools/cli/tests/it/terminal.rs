//! The program on a terminal: its questions, the editor, and the live view.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::mem::take;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use queue_runtime::{Delivery, QueueService};
use queue_tests::orders::ShopOrder;
use queue_tests::{in_namespaces, only_child};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use serde_json::json;

use crate::support::Storage;

/// The time in which a program that waits for nobody writes something or ends.
const GUARD: Timespec = Timespec {
    tv_sec: 300,
    tv_nsec: 0,
};

/// A run of the program whose input, output and errors are a terminal.
struct Session {
    terminal: File,
    program: Child,
    /// What the program has written so far.
    said: String,
}

impl Session {
    fn start(storage: &Storage, editor: &str, arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = openpt(flags).expect("a terminal");
        grantpt(&terminal).expect("ours");
        unlockpt(&terminal).expect("open");
        let other = || -> OwnedFd { ioctl_tiocgptpeer(&terminal, flags).expect("its other end") };
        let mut command = Command::new(env!("CARGO_BIN_EXE_queues"));
        command.args(arguments).env("QUEUE_URL", &storage.url);
        command.env("TERM", "xterm").env("EDITOR", editor);
        command.env_remove("VISUAL").env_remove("RUST_LOG");
        command.stdin(Stdio::from(other()));
        command.stdout(Stdio::from(other()));
        command.stderr(Stdio::from(other()));
        let program = command.spawn().expect("it starts");
        // Only the program has the other end then, so that it ends with it.
        drop(command);
        Self {
            terminal: File::from(terminal),
            program,
            said: String::new(),
        }
    }

    /// Reads on. Returns false at the end.
    fn read(&mut self) -> bool {
        let mut awaited = [PollFd::new(&self.terminal, PollFlags::IN)];
        let ready = poll(&mut awaited, Some(&GUARD)).expect("polled");
        assert!(ready > 0, "nothing comes after {:?}", self.said);
        let mut some = [0; 4096];
        // An error means that the other end is closed.
        let read = self.terminal.read(&mut some).unwrap_or(0);
        self.said += &String::from_utf8_lossy(&some[..read]);
        read > 0
    }

    /// Waits until the program has written this.
    fn expect(&mut self, text: &str) {
        while !self.said.contains(text) {
            assert!(self.read(), "{text:?} is not in {:?}", self.said);
        }
    }

    fn answer(&mut self, line: &str) {
        let line = format!("{line}\n");
        self.terminal.write_all(line.as_bytes()).expect("typed");
    }

    /// Returns the exit code and what was written.
    fn end(mut self) -> (i32, String) {
        while self.read() {}
        let ended = self.program.wait().expect("it has ended");
        (ended.code().expect("by itself"), take(&mut self.said))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn submit(storage: &Storage, id: &str) {
    let message = ["submit", "orders", r#"{"number":1}"#, "--id", id];
    storage.out(&[&message[..], &["--kind", "shop.order"]].concat());
}

fn number(storage: &Storage, id: &str) -> serde_json::Value {
    let shown = storage.json(&["find", "orders", id]);
    shown[0]["body"]["event"]["payload"]["number"].clone()
}

#[test]
fn only_a_yes_destroys_something() {
    let storage = Storage::new();
    submit(&storage, "a");
    for (answer, code, left) in [("", 5, 1), ("no", 5, 1), ("yes", 0, 0)] {
        let mut session = Session::start(&storage, "", &["delete-message", "orders", "a"]);
        session.expect("Delete 1 message of queue `orders`? [y/N]");
        session.answer(answer);
        let (ended, said) = session.end();
        assert_eq!(ended, code, "{said}");
        assert_eq!(storage.messages("orders"), left);
    }
}

#[tokio::test]
async fn a_message_that_was_received_since_the_question_stays() {
    let storage = Storage::new();
    submit(&storage, "a");
    submit(&storage, "b");
    let mut session = Session::start(&storage, "", &["delete-message", "orders", "a", "b"]);
    session.expect("[y/N]");
    let service: QueueService = storage.service().await;
    let held: Option<Delivery<ShopOrder>> = service.accept().await.expect("no error");
    let held = held.expect("the first");
    session.answer("y");
    let (code, said) = session.end();
    assert_eq!(code, 6, "a part was done: {said}");
    for text in ["message a is not deleted", "deleted 1 message"] {
        assert!(said.contains(text), "{said}");
    }
    held.complete().await.expect("it is still ours");
    let mut session = Session::start(&storage, "", &["delete-message", "orders", "b"]);
    session.expect("no message with the id b");
    assert_eq!(session.end().0, 3);
}

#[test]
fn a_payload_is_changed_in_an_editor() {
    let storage = Storage::new();
    submit(&storage, "a");
    let edit = ["edit", "orders", "a"];
    let mut session = Session::start(&storage, "sed -i s/1/2/", &edit);
    session.expect("Replace the payload of message a");
    session.answer("y");
    let (code, said) = session.end();
    assert_eq!((code, number(&storage, "a")), (0, json!(2)), "{said}");

    for (editor, text) in [
        ("true", "nothing was changed"),
        ("false", "the editor has failed"),
    ] {
        let (code, said) = Session::start(&storage, editor, &edit).end();
        assert!(code == 5 && said.contains(text), "{editor}: {code} {said}");
    }
    let (code, said) = Session::start(&storage, "no-such-editor", &edit).end();
    assert!(code == 1 && said.contains("no-such-editor"), "{said}");
    assert_eq!(number(&storage, "a"), 2);
}

#[test]
fn what_was_written_in_an_editor_is_kept_if_it_is_refused() {
    let storage = Storage::new();
    submit(&storage, "a");
    let mut session = Session::start(&storage, "sed -i s/}//", &["edit", "orders", "a", "--yes"]);
    session.expect("what you wrote is in `");
    let (code, said) = session.end();
    assert_eq!((code, number(&storage, "a")), (1, json!(1)), "{said}");
    let (_, path) = said.split_once("what you wrote is in `").expect("a path");
    let (path, _) = path.split_once('`').expect("quoted");
    let kept = std::fs::read_to_string(path).expect("kept");
    std::fs::remove_file(path).expect("removed");
    assert!(kept.contains("\"number\": 1") && !kept.contains('}'));
}

#[test]
fn the_live_view_leaves_the_terminal_as_it_was() {
    let storage = Storage::new();
    submit(&storage, "a");
    let watch = ["watch", "--interval", "100ms", "-n", "2"];
    let (code, said) = Session::start(&storage, "", &watch).end();
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("\u{1b}[?1049h"), "{said:?}");
    assert!(said.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{said:?}");
    assert!(
        said.contains("orders") && said.contains("HISTORY"),
        "{said:?}"
    );
}

#[test]
fn the_live_view_leaves_the_terminal_as_it_was_on_every_signal_to_stop() {
    let storage = Storage::new();
    submit(&storage, "a");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut session = Session::start(&storage, "", &["watch", "--interval", "1h"]);
        session.expect("HISTORY");
        kill_process(Pid::from_child(&session.program), signal).expect("it runs");
        let (code, said) = session.end();
        assert_eq!(code, 128 + signal.as_raw(), "{said:?}");
        let (_, after) = said.split_once("HISTORY").expect("shown");
        assert!(after.contains("\u{1b}[?25h\u{1b}[?1049l"), "{after:?}");
    }
}

/// The kernel gives the first process of a container no default actions.
#[test]
fn it_ends_as_the_first_process_of_a_container() {
    let Some(mut command) = in_namespaces(&["--pid", "--fork"]) else {
        return;
    };
    let storage = Storage::new();
    submit(&storage, "a");
    command.arg(env!("CARGO_BIN_EXE_queues"));
    command.args(["watch", "--interval", "1h"]);
    command
        .env("QUEUE_URL", &storage.url)
        .stdout(Stdio::piped());
    let mut outer = command.spawn().expect("it starts");
    let mut some = [0; 64];
    let mut output = outer.stdout.take().expect("piped");
    let read = output.read(&mut some).expect("it watches");
    assert!(read > 0);
    let first = only_child(outer.id());
    kill_process(Pid::from_raw(first).expect("it is one"), Signal::TERM).expect("it runs");
    let ended = outer.wait().expect("it is a child of ours");
    assert_eq!(ended.code(), Some(128 + Signal::TERM.as_raw()));
}
