//! Wake-ups between processes that use one file.
//!
//! Idle consumers poll once an hour here: what they handle before the test gives up was announced to them.

use std::io::{BufRead as _, BufReader, Lines};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use queue_runtime::backend::SqliteBackend;
use queue_runtime::clock::SystemClock;
use queue_runtime::policy::{Idle, IdlePolicy};
use queue_runtime::{ListenerHandle, QueueService, Received};
use queue_tests::orders::ShopOrder;
use rusqlite::Connection;
use tempfile::TempDir;

const TEST: &str = "sqlite::wakeups::a_process_that_waits_is_woken_by_another";

/// Set for the process that waits: the file.
const FILE: &str = "QUEUE_TEST_WAKEUPS";

/// Long enough for the slowest machine; only a lost wake-up meets it.
const GUARD: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Hourly;

impl IdlePolicy for Hourly {
    fn delay(&self, _: Idle) -> Duration {
        Duration::from_secs(3600)
    }
}

/// A process that waits for messages and prints their numbers.
struct Waiting {
    process: Child,
    handled: Receiver<String>,
}

impl Waiting {
    fn start(path: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", TEST, "--nocapture"])
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = process.stdout.take().expect("it is piped");
        let (sender, handled) = mpsc::channel();
        thread::spawn(move || {
            let lines: Lines<BufReader<ChildStdout>> = BufReader::new(output).lines();
            for line in lines.map_while(Result::ok) {
                if let Some(number) = line.strip_prefix("handled ") {
                    // The test may have failed.
                    let _ = sender.send(number.to_owned());
                }
            }
        });
        Self { process, handled }
    }

    fn expect(&self, number: u32) {
        let handled = self.handled.recv_timeout(GUARD);
        assert_eq!(handled, Ok(number.to_string()));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn connect(path: &Path) -> (QueueService, Arc<SqliteBackend>) {
    let clock = Arc::new(SystemClock::new());
    let backend = SqliteBackend::open(path, clock.clone()).await;
    let backend = Arc::new(backend.expect("opens"));
    let service = QueueService::with_backend(backend.clone())
        .clock(clock)
        .connect();
    (service.await.expect("connects"), backend)
}

fn listen(service: &QueueService, handled: impl Fn(u32) + Send + Sync + 'static) -> ListenerHandle {
    let listener = service.listener(move |order: Received<ShopOrder>| {
        handled(order.number);
        async {}
    });
    listener.idle(Hourly).start().expect("starts")
}

/// Waits until so many processes are registered, and returns their ports.
fn registered(path: &Path, count: usize) -> Vec<u16> {
    let connection = Connection::open(path).expect("opens");
    let ports = "SELECT port FROM queue_consumers";
    let mut ports = connection.prepare(ports).expect("the table exists");
    let started = Instant::now();
    loop {
        let found = ports.query_map([], |row| row.get(0)).expect("read");
        let found: Vec<u16> = found.collect::<Result<_, _>>().expect("ports");
        if found.len() == count {
            return found;
        }
        assert!(started.elapsed() < GUARD, "{found:?} are registered");
        thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waits_is_woken_by_another() {
    if let Some(path) = std::env::var_os(FILE) {
        let (service, _backend) = connect(Path::new(&path)).await;
        let _listener = listen(&service, |number| println!("\nhandled {number}"));
        // Until it is killed, or the test's process has ended.
        let mut input = String::new();
        std::io::stdin().read_line(&mut input).expect("a pipe");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("queue.db");
    let (service, _backend) = connect(&path).await;
    let queue = service.queue::<ShopOrder>();
    queue.any().create().await.expect("created");

    let submit = async |waiting: &Waiting, number| {
        queue.submit(ShopOrder { number }).await.expect("submitted");
        waiting.expect(number);
    };
    let first = Waiting::start(&path);
    registered(&path, 1);
    for number in 0..20 {
        submit(&first, number).await;
    }
    // Its registration stays behind.
    drop(first);
    let second = Waiting::start(&path);
    let ports = registered(&path, 2);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    for port in ports {
        for forged in [b"".as_slice(), b"QMSG\x01", &[0xff; 4096]] {
            // Of the process that has ended, the port may be closed.
            let _ = socket.send_to(forged, (Ipv4Addr::LOCALHOST, port));
        }
    }
    for number in 20..40 {
        submit(&second, number).await;
    }
    let orders = [40, 41, 42].map(|number| ShopOrder { number });
    queue.submit_all(orders).await.expect("submitted");
    let mut handled = [40, 41, 42].map(|_| second.handled.recv_timeout(GUARD).ok());
    handled.sort();
    assert_eq!(
        handled,
        [40, 41, 42].map(|number: u32| Some(number.to_string()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_one_process_wake_each_other_and_withdraw_when_they_are_closed() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("queue.db");
    let (web, web_backend) = connect(&path).await;
    let (worker, worker_backend) = connect(&path).await;
    web.queue::<ShopOrder>()
        .any()
        .create()
        .await
        .expect("created");
    registered(&path, 0);
    let (sender, handled) = mpsc::channel();
    let listener = listen(&worker, move |number| {
        sender.send(number).expect("the test waits")
    });
    registered(&path, 1);
    for number in 0..5 {
        web.submit(ShopOrder { number }).await.expect("submitted");
        assert_eq!(handled.recv_timeout(GUARD), Ok(number));
        let number = number + 100;
        worker
            .submit(ShopOrder { number })
            .await
            .expect("submitted");
        assert_eq!(handled.recv_timeout(GUARD), Ok(number));
    }
    listener.shutdown(GUARD).await;
    worker_backend.close().await;
    registered(&path, 0);
    web_backend.close().await;
}
