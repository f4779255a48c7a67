//! The example `examples/languages`: Python puts orders, Rust submits a receipt for each, and JavaScript receives it.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use queue_runtime::QueueService;
use queue_tests::azurite::Azurite;
use queue_tests::built;

use crate::peer;
use crate::server::{ACCOUNT, runtime};

const ORDERS: usize = 10;

/// Long enough for the slowest machine; only a hang meets it.
const GUARD: Duration = Duration::from_secs(120);

#[test]
fn each_order_of_python_has_one_receipt_of_rust_in_javascript() {
    let server = Azurite::server(&[ACCOUNT]).unwrap_or_else(|error| panic!("{error}"));
    let url = format!("sqlite:{}", server.file(ACCOUNT).display());
    let listener = built("languages").unwrap_or_else(|error| panic!("{error}"));
    let mut listener = Running::start(Command::new(listener).env("QUEUE_URL", &url));

    let producer = Running::start(&mut program("producer.py", &server));
    producer.finish_beside(&mut listener);
    let consumer = Running::start(program("consumer.mjs", &server).arg(ORDERS.to_string()));
    let printed = consumer.finish_beside(&mut listener);

    // In any order, since the listener handles some at once; none twice, since as many were printed as there are orders.
    let receipts: BTreeSet<_> = printed.lines().map(str::to_owned).collect();
    let expected = (1..=ORDERS).map(|n| format!("order {n}: café no. {n} is on its way"));
    assert_eq!(receipts, expected.collect());
    runtime().block_on(async {
        let service = QueueService::connect(&url).await.expect("connect");
        for queue in ["orders", "receipts"] {
            let left = service.any_queue(queue).expect("a name").properties().await;
            assert_eq!(left.expect("it exists").approximate_count, 0, "{queue}");
        }
    });
}

/// Returns the command that runs a program of the example on the queues of a server.
fn program(name: &str, server: &Azurite) -> Command {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/languages");
    let mut command = peer::command(&Path::new(folder).join(name));
    command.env("CONNECTION_STRING", server.connection_string(ACCOUNT));
    command
}

/// A program that prints a few lines, ended with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let started = command.stdout(Stdio::piped()).spawn();
        Self(started.unwrap_or_else(|error| panic!("start {command:?}: {error}")))
    }

    /// Waits for the end of this program while another one runs, and returns what this one has printed.
    fn finish_beside(mut self, other: &mut Self) -> String {
        let started = Instant::now();
        let ended = loop {
            if let Some(ended) = self.0.try_wait().expect("it is a child of ours") {
                break ended;
            }
            let other = other.0.try_wait().expect("it is a child of ours");
            assert_eq!(other, None, "the other program has ended");
            assert!(started.elapsed() < GUARD, "the program does not end");
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut printed = String::new();
        let mut output = self.0.stdout.take().expect("piped");
        output.read_to_string(&mut printed).expect("text");
        assert!(ended.success(), "{ended}: {printed}");
        printed
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
