//! A disk that PostgreSQL fills.
//!
//! The disk is a small file system in memory, which only the server sees: it is mounted in a namespace of its own. That
//! needs Linux, and a user who may create one.
//!
//! If the data fill the disk and the write-ahead log is elsewhere, puts fail, nothing of them is done, and the server goes
//! on. A receive or a completion may fail in the same way, since a row that is changed needs space too.
//!
//! If the write-ahead log fills the disk, the server stops, and does not start again before there is space. The put that
//! met it may have been carried out.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::error::Error as _;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use queue_crash::messages::{CrashOrder, Named as _};
use queue_crash::plan;
use queue_crash::process::GUARD;
use queue_runtime::error::{Outcome, RetryAdvice};
use queue_runtime::policy::StorageRetry;
use queue_runtime::receive::{AcceptErrorKind, SettleErrorKind};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::{Error, ErrorKind, QueueService};
use queue_tests::incompressible;
use queue_tests::postgres::{PostgresServer, WriteAheadLog};

/// The size of the disk in mebibytes, of which a new server takes some 40, or some 60 with its log.
const DISK: u32 = 120;

/// What is left of the disk in kibibytes: less than a file of the write-ahead log has, and more than what one contains.
const LEFT: u32 = 13_000;

/// The orders that one operation submits, and their size in bytes.
const ORDERS: usize = 20;
const SIZE: usize = 20_000;

/// Orders, and what the storage has said of them.
#[derive(Debug, Default)]
struct Orders {
    submitted: usize,
    /// The submission was acknowledged, and no completion.
    waiting: BTreeSet<String>,
    /// The submission may have been carried out; each is of one operation.
    unknown: Vec<BTreeSet<String>>,
}

#[tokio::test]
async fn data_that_fill_the_disk_stop_puts_and_nothing_is_lost() {
    let server = PostgresServer::builder().on_a_disk(DISK, WriteAheadLog::Elsewhere);
    let mut server = server.start().expect("PostgreSQL starts");
    let service = connect(&server).await;
    let mut orders = Orders::default();
    for _ in 0..plan::times(1) {
        orders.submit(&service).await.expect("there is space");
        server.take_disk(LEFT).expect("taken");
        let refused = loop {
            if let Err(error) = orders.submit(&service).await {
                break error;
            }
        };
        println!("{} orders; then: {refused}", orders.waiting.len());
        check(&refused);
        let half = orders.waiting.len() / 2;
        let failed = orders.complete(&service, half).await;
        println!(
            "{failed} receives and completions failed on the full disk, and {} orders are left",
            orders.waiting.len()
        );
        server.free_disk().expect("it is free");
        orders.complete(&service, 0).await;
    }
    assert_eq!(orders.unknown, [], "nothing was unknown");
    orders.submit(&service).await.expect("there is space");
    orders.complete(&service, 0).await;
}

#[tokio::test]
async fn a_log_that_fills_the_disk_stops_the_server_and_nothing_is_lost() {
    for _ in 0..plan::times(1) {
        let server = PostgresServer::builder().on_a_disk(DISK, WriteAheadLog::OnTheDisk);
        let mut server = server.start().expect("PostgreSQL starts");
        let service = connect(&server).await;
        let mut orders = Orders::default();
        orders.submit(&service).await.expect("there is space");
        server.take_disk(LEFT).expect("taken");
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).is_ok() {
            assert!(started.elapsed() < GUARD, "the server does not stop");
            if let Err(error) = orders.submit(&service).await {
                println!(
                    "{} orders; then: {error} ({:?})",
                    orders.waiting.len(),
                    error.source()
                );
                assert_eq!(error.retry(), RetryAdvice::Temporary, "{error}");
            }
        }
        let stopped = orders.submit(&service).await;
        let stopped = stopped.expect_err("the server has stopped");
        assert_eq!(stopped.kind(), ErrorKind::Unreachable, "{stopped}");
        assert_eq!(stopped.outcome(), Outcome::NotDone, "{stopped}");
        let unstarted = server.crash().expect_err("there is no space");
        println!("{unstarted}");

        server.free_disk().expect("it is free");
        server.crash().expect("it starts");
        orders.complete(&service, 0).await;
        orders.submit(&service).await.expect("there is space");
        orders.complete(&service, 0).await;
    }
}

/// Checks that an operation failed because the disk is full, and that it can be repeated.
fn check(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone, "{error}");
    assert_eq!(error.retry(), RetryAdvice::Temporary, "{error}");
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("No space left on device"), "{cause}");
}

async fn connect(server: &PostgresServer) -> QueueService {
    let service = QueueService::builder(server.url()).connect().await;
    service.expect("it can be reached")
}

impl Orders {
    async fn submit(&mut self, service: &QueueService) -> Result<(), Error> {
        let from = self.submitted;
        self.submitted += ORDERS;
        let names = (from..self.submitted).map(|number| format!("{number}-p"));
        let names: BTreeSet<_> = names.collect();
        let orders = names.iter().map(|name| CrashOrder {
            name: name.clone(),
            padding: incompressible(SIZE),
        });
        let submitted = service.submit_all(orders.collect::<Vec<_>>());
        let submitted = submitted.storage_retry(StorageRetry::never()).await;
        match submitted.map_err(|error| error.kind) {
            Ok(_) => {
                self.waiting.extend(names);
                Ok(())
            }
            Err(SubmitErrorKind::Storage(error)) => {
                if error.outcome() == Outcome::Unknown {
                    self.unknown.push(names);
                }
                Err(error)
            }
            Err(problem) => panic!("{problem}"),
        }
    }

    /// Completes orders until so many are left, and returns how many operations have failed: if none are to be left, none
    /// because of the disk.
    async fn complete(&mut self, service: &QueueService, left: usize) -> usize {
        let (mut failed, mut failed_in_turn) = (0, 0);
        let started = Instant::now();
        let is_full = left > 0;
        while self.waiting.len() > left || self.is_there(service, is_full).await {
            assert!(started.elapsed() < GUARD, "{} remain", self.waiting.len());
            let Err(error) = self.complete_one(service).await else {
                failed_in_turn = 0;
                continue;
            };
            failed += 1;
            failed_in_turn += 1;
            if is_full {
                check(&error);
                // There may be no row that can be changed.
                if failed_in_turn > ORDERS / 2 {
                    break;
                }
            } else {
                // The server has started again, or takes its time to.
                let kinds = [ErrorKind::Unreachable, ErrorKind::Timeout];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
        }
        for operation in &mut self.unknown {
            // It was carried out or not, not a part of it.
            assert!([0, ORDERS].contains(&operation.len()), "{operation:?}");
            operation.clear();
        }
        failed
    }

    /// Whether there are more orders than those that were acknowledged.
    async fn is_there(&self, service: &QueueService, is_full: bool) -> bool {
        if is_full {
            return false;
        }
        let queue = service.queue::<CrashOrder>();
        let count = queue.any().properties().await;
        count.is_ok_and(|properties| properties.approximate_count > 0)
    }

    async fn complete_one(&mut self, service: &QueueService) -> Result<(), Error> {
        let accept = service.accept::<CrashOrder>();
        let accepted = accept.storage_retry(StorageRetry::never()).await;
        let delivery = match accepted.map_err(|error| error.kind) {
            Ok(Some(delivery)) => delivery,
            Ok(None) => return Ok(()),
            Err(AcceptErrorKind::Storage(error)) => return Err(error),
            Err(problem) => panic!("{problem}"),
        };
        let name = delivery.name().to_owned();
        let is_unknown = self.unknown.iter().any(|names| names.contains(&name));
        assert!(
            self.waiting.contains(&name) || is_unknown,
            "{name} is complete, or was not submitted"
        );
        match delivery.complete().await.map_err(|error| error.kind) {
            Ok(_) => {
                self.waiting.remove(&name);
                for names in &mut self.unknown {
                    names.remove(&name);
                }
                Ok(())
            }
            // It comes again.
            Err(SettleErrorKind::LeaseLost(_)) => Ok(()),
            Err(SettleErrorKind::NotDone(error)) => Err(error),
            Err(problem) => panic!("{problem}"),
        }
    }
}
