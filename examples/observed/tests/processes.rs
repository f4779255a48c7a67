//! The two processes share the traces of their messages, and the metrics can be scraped.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Stops its process when it is dropped.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program(command: &str, folder: &tempfile::TempDir) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_observed"));
    let file = folder.path().join("observed.db");
    program
        .arg(command)
        .env("QUEUE_URL", format!("sqlite:{}", file.display()));
    program
}

/// The fields of a printed span: trace, span, parent, and the rest.
fn span(line: &str) -> Option<(&str, &str, &str, &str)> {
    let rest = line.strip_prefix("trace=")?;
    let (trace, rest) = rest.split_once(" span=")?;
    let (id, rest) = rest.split_once(" parent=")?;
    let (parent, rest) = rest.split_once(' ')?;
    Some((trace, id, parent, rest))
}

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).expect("the worker listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("received");
    text
}

#[test]
fn a_trace_goes_through_both_processes_and_metrics_are_scraped() {
    let folder = tempfile::tempdir().expect("a folder");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let worker = program("work", &folder)
        .env("METRICS_ADDRESS", address.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut worker = Worker(worker.expect("started"));
    let output = worker.0.stdout.take().expect("piped");
    let mut lines = BufReader::new(output)
        .lines()
        .map(|line| line.expect("text"));
    let ready = lines.next().expect("a line");
    assert!(ready.contains("/metrics"), "{ready}");

    let submitter = program("submit", &folder).output().expect("it runs");
    assert!(submitter.status.success(), "{submitter:?}");
    let submitted = String::from_utf8(submitter.stdout).expect("text");
    let mut sent = BTreeMap::new();
    for line in submitted.lines() {
        let (trace, id, _, name) = span(line).expect("a span");
        if name == "send orders" {
            sent.insert(trace.to_owned(), id.to_owned());
        }
    }
    assert_eq!(sent.len(), 3, "{submitted}");

    // Each order is packed, processed, and its invoice is processed.
    let (mut processed, mut ended) = (BTreeMap::new(), 0);
    for line in lines.by_ref() {
        let Some((trace, id, parent, name)) = span(&line) else {
            continue;
        };
        assert!(sent.contains_key(trace), "of another trace: {line}");
        match name.split_once(" completed") {
            Some(("process orders", _)) => {
                assert_eq!(parent, sent[trace], "{line}");
                processed.insert(trace.to_owned(), id.to_owned());
            }
            _ if name.starts_with("process invoices") => ended += 1,
            _ => {}
        }
        if ended == 3 && processed.len() == 3 {
            break;
        }
    }

    let text = scrape(address);
    for line in [
        r#"messaging_client_consumed_messages_total{messaging_destination_name="orders"} 3"#,
        r#"queue_settled_messages_total{messaging_destination_name="orders",message_kind="shop.order",outcome="completed"} 3"#,
        r#"queue_settled_messages_total{messaging_destination_name="invoices",message_kind="shop.invoice",outcome="poisoned"} 1"#,
        r#"messaging_process_duration_seconds_count{messaging_destination_name="invoices",message_kind="shop.invoice"} 3"#,
        "# TYPE queue_message_lag_seconds histogram",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }

    let _ = worker.0.kill();
    let mut warnings = String::new();
    let mut output = worker.0.stderr.take().expect("piped");
    output.read_to_string(&mut warnings).expect("text");
    let rejected = warnings.contains("moved a message to the poison queue");
    assert!(rejected && warnings.contains("WARN"), "{warnings}");
}
