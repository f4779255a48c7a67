//! Files that commands write: what becomes of them meanwhile, and what is deleted then.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use queue_runtime::sqlite::rusqlite::Connection;

use crate::support::{Ran, Storage};

#[tokio::test]
async fn a_file_that_another_export_writes_is_refused() {
    let storage = Storage::new();
    storage.submit(0..40).await;
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    storage.out(&["export", "orders", file]);
    let before = fs::read(&path).expect("read");
    let other = OpenOptions::new().append(true).open(&path).expect("opened");
    other.try_lock().expect("nobody else has it");
    for arguments in [
        &["export", "orders", file, "--append"][..],
        &["export", "orders", file, "--append", "--move", "--yes"],
        &["import", file],
    ] {
        let ran = storage.run(arguments);
        ran.failed(1, "another process writes");
        assert!(ran.error.contains(file), "{ran:?}");
    }
    assert_eq!(storage.messages("orders"), 40);
    assert_eq!(fs::read(&path).expect("read"), before);
    drop(other);
    storage.out(&["export", "orders", file, "--append", "--move", "--yes"]);
    assert_eq!(storage.messages("orders"), 0);
}

#[cfg(unix)]
#[tokio::test]
async fn what_was_moved_to_a_file_that_is_removed_is_written_again() {
    const ORDERS: u32 = 4_000;
    for _ in 0..20 {
        let storage = Storage::new();
        storage.submit(0..ORDERS).await;
        let path = storage.path("orders.jsonl");
        let file = path.to_str().expect("text");
        let database = Connection::open(storage.path("shop.db")).expect("opened");
        let mut export = start(&storage, &["export", "orders", file, "--move", "--yes"]);
        // More than is deleted at once is written, so that some is deleted.
        let length = || fs::metadata(&path).map_or(0, |file| file.len());
        while length() < 40_000 && export.try_wait().expect("asked").is_none() {
            std::thread::yield_now();
        }
        database.execute_batch("BEGIN IMMEDIATE").expect("locked");
        fs::remove_file(&path).expect("removed");
        database.execute_batch("ROLLBACK").expect("unlocked");
        let ran = ended(export);
        if ran.code == 0 {
            // It was faster than this process, which did not run meanwhile.
            continue;
        }
        ran.failed(6, "is not at its path");
        let (_, rescued) = ran.error.split_once("is in `").expect("it is named");
        let (rescued, _) = rescued.split_once('`').expect("quoted");
        let other = Storage::new();
        other.out(&["import", rescued]);
        let text = storage.out(&["export", "orders"]) + &other.out(&["export", "orders"]);
        let number = |line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            line["event"]["data"]["number"].as_u64().expect("an order")
        };
        let found: BTreeSet<_> = text.lines().map(number).collect();
        assert_eq!(found.len(), ORDERS as usize, "{ran:?}");
        return;
    }
    panic!("no file was removed in the middle");
}

fn start(storage: &Storage, arguments: &[&str]) -> Child {
    let mut export = Command::new(env!("CARGO_BIN_EXE_queues"));
    export.env("QUEUE_URL", &storage.url).args(arguments);
    export.stdin(Stdio::null()).stdout(Stdio::piped());
    export.stderr(Stdio::piped()).spawn().expect("it starts")
}

fn ended(process: Child) -> Ran {
    let output = process.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran {
        code: output.status.code().expect("it ended by itself"),
        out: text(output.stdout),
        error: text(output.stderr),
    }
}

/// Moves messages into a file to which something happens after it was opened and before anything is received.
fn harmed(storage: &Storage, file: &Path, harm: impl FnOnce(&Path)) -> Ran {
    let whole = fs::metadata(file).expect("it exists").len();
    let mut end = OpenOptions::new().append(true).open(file).expect("opened");
    end.write_all(b"{\"queue\":\"ord").expect("written");
    let name = file.to_str().expect("text");
    let arguments = ["export", "orders", name, "--move", "--append", "--yes"];
    let database = Connection::open(storage.path("shop.db")).expect("opened");
    database.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let mut export = start(storage, &arguments);
    // Its end was cut off, and nothing more is asked of the file before something is written.
    let is_open = || fs::metadata(file).is_ok_and(|file| file.len() == whole);
    while !is_open() && export.try_wait().expect("asked").is_none() {
        std::thread::yield_now();
    }
    harm(file);
    database.execute_batch("ROLLBACK").expect("unlocked");
    ended(export)
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_deleted_that_is_not_in_the_file_at_its_path() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm, &str); 5] = [
        (
            "removed",
            |file| fs::remove_file(file).expect("removed"),
            "is not at its path",
        ),
        (
            "replaced",
            |file| {
                let other = file.with_extension("other");
                fs::write(&other, "").expect("written");
                fs::rename(other, file).expect("replaced");
            },
            "is not at its path",
        ),
        (
            "replaced by a link",
            |file| {
                let other = file.with_extension("other");
                fs::write(&other, "").expect("written");
                fs::remove_file(file).expect("removed");
                std::os::unix::fs::symlink(other, file).expect("linked");
            },
            "is not at its path",
        ),
        (
            "truncated",
            |file| File::create(file).map(drop).expect("truncated"),
            "bytes",
        ),
        (
            "written by a program that asks nobody",
            |file| {
                let mut other = OpenOptions::new().append(true).open(file).expect("opened");
                other.write_all(b"a note\n").expect("written");
            },
            "bytes",
        ),
    ];
    for (what, harm, said) in harms {
        let storage = Storage::new();
        storage.submit(0..1).await;
        let path = storage.path("orders.jsonl");
        let file = path.to_str().expect("text");
        storage.out(&["export", "orders", file, "--move", "--yes"]);
        storage.submit(1..200).await;
        let ran = harmed(&storage, &path, harm);
        assert!(ran.code == 1 && ran.error.contains(said), "{what}: {ran:?}");
        assert!(ran.error.contains(file), "{what}: {ran:?}");
        assert_eq!(storage.messages("orders"), 199, "{what}");
        assert_eq!(
            storage.json(&["peek", "orders", "-n", "32"]).len(),
            32,
            "{what}: visible at once"
        );
    }
}

#[cfg(unix)]
#[tokio::test]
async fn what_is_no_file_is_refused_before_a_message_is_received() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let fifo = storage.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("it runs");
    assert!(made.success());
    let folder = storage.folder.path().to_str().expect("text").to_owned();
    for file in ["/dev/null", fifo.to_str().expect("text"), &folder] {
        let ran = storage.run(&["export", "orders", file, "--append", "--move", "--yes"]);
        assert!(matches!(ran.code, 1 | 2), "{file}: {ran:?}");
        assert!(ran.error.contains(file), "{file}: {ran:?}");
        assert_eq!(storage.json(&["peek", "orders"])[0]["dequeue_count"], 0);
    }
    // By another name of a file that another program has opened, which is one.
    let path = storage.path("orders.jsonl");
    let line = format!(
        "{} export orders /dev/stdout --append --move --yes >> {}",
        env!("CARGO_BIN_EXE_queues"),
        path.display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).env("QUEUE_URL", &storage.url);
    shell.output().expect("it runs");
    let text = fs::read_to_string(&path).expect("read");
    let lines = text
        .lines()
        .filter(|line| line.contains("\"event\""))
        .count() as u64;
    assert_eq!(lines + storage.messages("orders"), 3, "{text}");
}

#[tokio::test]
async fn an_append_keeps_what_no_export_has_written() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    let whole = storage.out(&["export", "orders"]);
    let append = ["export", "orders", file, "--append"];
    for end in ["a note of somebody", "{\"number\": 7", "\0\0\0\0"] {
        let text = format!("{whole}{end}");
        fs::write(&path, &text).expect("written");
        storage.run(&append).failed(2, "no export has written");
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
    }
    // An editor may have left out the last line end: the message may be nowhere else.
    fs::write(&path, whole.trim_end()).expect("written");
    storage.out(&append);
    let text = fs::read_to_string(&path).expect("read");
    assert_eq!(text, format!("{whole}{whole}"));
}

#[tokio::test]
async fn a_file_that_an_error_has_left_short_has_whole_lines() {
    let storage = Storage::new();
    storage.submit(0..600).await;
    let path = storage.path("orders.jsonl");
    // Larger than the storage, and of a length that leaves room for some messages, and for a part of one.
    let line = storage
        .out(&["export", "orders"])
        .lines()
        .next()
        .expect("a line")
        .to_owned()
        + "\n";
    let limit = 16 * 1024 * 1024;
    let before = (limit - 20_000) / line.len();
    fs::write(&path, line.repeat(before)).expect("written");
    // A limit for files is met in the middle of a line, as a full disk is.
    let line = format!(
        "trap '' XFSZ; ulimit -f 16384; exec {} export orders {} --move --append --yes",
        env!("CARGO_BIN_EXE_queues"),
        path.display()
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &line]).env("QUEUE_URL", &storage.url);
    let output = shell.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("failed to write") && said.contains("orders.jsonl"),
        "{said}"
    );
    let text = fs::read_to_string(&path).expect("read");
    assert!(text.ends_with('\n'), "{}", text.len());
    let moved = (text.lines().count() - before) as u64;
    assert_eq!(moved + storage.messages("orders"), 600);
    let code = output.status.code();
    assert_eq!(code, Some(if moved > 0 { 6 } else { 1 }), "{said}");
}

#[tokio::test]
async fn a_failure_after_a_part_says_how_many_and_exits_with_6() {
    let storage = Storage::new();
    storage.submit(0..100).await;
    let database = Connection::open(storage.path("shop.db")).expect("opened");
    // Fails in a way that no later try would change.
    let trap = "CREATE TRIGGER trap BEFORE DELETE ON queue_messages WHEN OLD.seq > 40 \
         BEGIN SELECT abs(-9223372036854775808); END";
    database.execute_batch(trap).expect("set");
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    let ran = storage.run(&["--json", "export", "orders", file, "--move", "--yes"]);
    ran.failed(6, "40 messages were moved");
    assert!(ran.out.contains("\"moved\":40"), "{ran:?}");
    assert_eq!(storage.messages("orders"), 60);

    database
        .execute_batch("DROP TRIGGER trap")
        .expect("removed");
    let poison = Storage::new();
    poison.submit(0..60).await;
    for _ in 0..60 {
        poison.reject("closed").await;
    }
    let database = Connection::open(poison.path("shop.db")).expect("opened");
    let last = "SELECT max(seq) FROM queue_messages";
    let last: i64 = database
        .query_row(last, [], |row| row.get(0))
        .expect("a number");
    let trap = trap.replace("40", &(last - 10).to_string());
    database.execute_batch(&trap).expect("set");
    let ran = poison.run(&["--json", "redrive", "orders-poison", "--yes"]);
    ran.failed(6, "50 messages were moved");
    assert!(ran.out.contains("\"redriven\":50"), "{ran:?}");
    assert_eq!(poison.messages("orders"), 50);

    // The second line is of the right form, and no event.
    let text = fs::read_to_string(&path).expect("read");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines[1] = lines[1].replacen("\"specversion\"", "\"version\"", 1);
    fs::write(&path, lines.join("\n") + "\n").expect("written");
    let other = Storage::new();
    let ran = other.run(&["import", file]);
    ran.failed(6, "1 message was imported");
    assert!(ran.error.contains("line 2"), "{ran:?}");
    assert_eq!(other.messages("orders"), 1);
}

#[test]
fn a_url_with_what_a_mistake_leaves_at_its_end_creates_no_file() {
    let storage = Storage::new();
    for end in ["\r", "\n", " ", "\"", "'", "\r?adopt"] {
        let url = format!("{}{end}", storage.url);
        for arguments in [
            &["--url", &url, "create", "orders"][..],
            &["--url", &url, "list"],
            &["--url", &url, "check"],
            &["--url", &url, "backup", "copy.db"],
        ] {
            storage.run(arguments).failed(2, "white space or a quote");
        }
    }
    let left = fs::read_dir(storage.folder.path()).expect("read").count();
    assert_eq!(left, 0);
    storage
        .run(&["--url", "memory:shop\r", "list"])
        .failed(2, "white space");
}

#[cfg(unix)]
#[tokio::test]
async fn no_message_is_completed_whose_line_is_in_a_file_that_was_removed() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let path = storage.path("orders.jsonl");
    received_after("rm", &path, &storage).failed(1, "was deleted");
    assert_eq!(storage.messages("orders"), 3);
    assert_eq!(received_after("ls", &path, &storage).code, 0);
    assert_eq!(storage.messages("orders"), 0);
}

#[cfg(unix)]
#[tokio::test]
async fn no_message_is_completed_whose_line_is_in_a_file_that_was_shortened() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let path = storage.path("orders.jsonl");
    // As a second `queues receive > FILE` does before it starts.
    received_after("echo a note; : >", &path, &storage).failed(1, "was shortened");
    assert_eq!(storage.messages("orders"), 3);
    assert_eq!(fs::read(&path).expect("read"), b"", "no gap of zeros");
}

/// Receives into a file, to which a shell has done this after it was opened.
#[cfg(unix)]
fn received_after(between: &str, path: &Path, storage: &Storage) -> Ran {
    let line = format!(
        "exec > {file}; {between} {file}; exec {program} receive orders -n 3 --complete --yes",
        file = path.display(),
        program = env!("CARGO_BIN_EXE_queues")
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]).env("QUEUE_URL", &storage.url);
    ended(shell.stderr(Stdio::piped()).spawn().expect("it starts"))
}

#[cfg(unix)]
#[tokio::test]
async fn no_message_is_received_for_a_file_that_another_process_writes() {
    let storage = Storage::new();
    storage.submit(0..3).await;
    let path = storage.path("orders.jsonl");
    fs::write(&path, "a note\n").expect("written");
    let open = || OpenOptions::new().append(true).open(&path).expect("opened");
    let receive = |output: &File| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_queues"));
        command.args(["receive", "orders", "--complete", "--yes"]);
        command.env("QUEUE_URL", &storage.url).stdin(Stdio::null());
        command.stdout(output.try_clone().expect("cloned"));
        ended(command.stderr(Stdio::piped()).spawn().expect("it starts"))
    };
    let (output, other) = (open(), open());
    other.try_lock().expect("nobody else has it");
    receive(&output).failed(1, "another process writes");
    assert_eq!(storage.messages("orders"), 3);
    assert_eq!(storage.json(&["peek", "orders"])[0]["dequeue_count"], 0);
    assert_eq!(fs::read_to_string(&path).expect("read"), "a note\n");

    // What is in the file stays, and whoever has opened it, as a shell does, does not keep the lock.
    other.unlock().expect("unlocked");
    for received in 1..=2 {
        let ran = receive(&output);
        assert_eq!(ran.code, 0, "{ran:?}");
        let text = fs::read_to_string(&path).expect("read");
        assert!(text.starts_with("a note\n{"), "{text}");
        assert_eq!(text.lines().count(), 1 + received);
        other.try_lock().expect("nobody has it any more");
        other.unlock().expect("unlocked");
    }
    assert_eq!(storage.messages("orders"), 1);
}
