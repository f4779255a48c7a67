//! `queues serve`: what it refuses, and what it has acknowledged when it is killed.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "parcels", visibility_timeout = "10m")]
struct Parcel {
    number: u32,
}

const KEY: &str = "a2V5IG9mIHRoZSBzaG9w";

fn queues(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queues"));
    command
        .args(arguments)
        .current_dir(folder)
        .env_remove("QUEUE_URL");
    command
}

struct Served {
    process: Child,
    address: String,
}

impl Served {
    /// Starts a server of the account `shop` on the file `queues.db`.
    fn start(folder: &Path) -> Self {
        std::fs::write(
            folder.join("accounts"),
            format!("# of the shop\nshop={KEY}\n"),
        )
        .expect("written");
        let arguments = [
            "serve",
            "--url",
            "sqlite:queues.db",
            "--port",
            "0",
            "--accounts",
            "accounts",
            "--until-input-ends",
        ];
        let mut process = queues(&arguments, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("it is piped");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it says where");
        let address = line
            .trim()
            .strip_prefix("serving queues at ")
            .expect("an address");
        Self {
            address: address.to_owned(),
            process,
        }
    }

    async fn service(&self) -> QueueService {
        let endpoint = format!("{}/shop", self.address);
        let url = format!("AccountName=shop;AccountKey={KEY};QueueEndpoint={endpoint}");
        QueueService::connect(&url).await.expect("connects")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_each_kill() {
    const KILLS: u32 = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let (mut acknowledged, mut leased, mut next) = (BTreeSet::new(), BTreeSet::new(), 0);
    for kill in 0..KILLS {
        let mut served = Served::start(folder.path());
        let service = served.service().await;
        // One is held when the server ends: its lease holds over the restart.
        let held = match kill {
            0 => None,
            _ => service.accept::<Parcel>().await.expect("no error"),
        };
        let submits = 20 + 10 * kill;
        for _ in 0..submits {
            service
                .submit(Parcel { number: next })
                .await
                .expect("stored");
            acknowledged.insert(next);
            next += 1;
        }
        let submit = service.submit(Parcel { number: next });
        // It may be stored or not.
        let last = tokio::time::timeout(Duration::from_millis(1), submit).await;
        if let Ok(Ok(_)) = last {
            acknowledged.insert(next);
        }
        next += 1;
        served.process.kill().expect("it runs");
        served.process.wait().expect("it ends");
        // A lease that is not handed back, as by a consumer that is killed, too.
        leased.extend(held.map(|held| std::mem::ManuallyDrop::new(held).number));
    }
    let served = Served::start(folder.path());
    let service = served.service().await;
    let mut found = BTreeSet::new();
    while let Some(parcel) = service.accept::<Parcel>().await.expect("no error") {
        found.insert(parcel.number);
        parcel.complete().await.expect("settled");
    }
    assert!(found.is_disjoint(&leased), "leases hold over restarts");
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert_eq!(
        lost,
        Vec::from_iter(&leased),
        "what was acknowledged is there, or leased"
    );
    let properties = service.queue::<Parcel>().any().properties().await;
    assert_eq!(properties.expect("read").approximate_count, leased.len());
}

#[tokio::test]
async fn an_expiry_is_kept_over_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let expiries = async |served: &Served| {
        let service = served.service().await;
        let peeked = service.queue::<Parcel>().any().peek(32).await;
        let peeked = peeked.expect("read").into_iter();
        peeked.map(|parcel| parcel.expires_at).collect::<Vec<_>>()
    };
    let mut served = Served::start(folder.path());
    let service = served.service().await;
    for (number, seconds) in [(0, 2), (1, 3_600)] {
        let parcel = service.submit(Parcel { number });
        let parcel = parcel.time_to_live(Duration::from_secs(seconds));
        parcel.await.expect("stored");
    }
    let before = expiries(&served).await;
    let later = before.last().copied().flatten();
    served.process.kill().expect("it runs");
    served.process.wait().expect("it ends");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let served = Served::start(folder.path());
    assert!(later.is_some());
    assert_eq!(expiries(&served).await, [later], "one has expired");
}

#[test]
fn an_address_that_others_reach_needs_more_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let accounts = folder.path().join("accounts");
    std::fs::write(&accounts, format!("shop={KEY}\n")).expect("written");
    let base = [
        "serve", "--url", "memory:", "--host", "0.0.0.0", "--port", "0",
    ];
    for (more, expected) in [
        (&[][..], "everybody knows the key of `devstoreaccount1`"),
        (
            &["--allow-known-key"][..],
            "there is no certificate for TLS",
        ),
        (
            &["--accounts", "accounts"][..],
            "there is no certificate for TLS",
        ),
    ] {
        let arguments = [&base[..], more].concat();
        let refused = queues(&arguments, folder.path())
            .output()
            .expect("it starts");
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn accounts_that_are_none_are_refused_without_their_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    for (lines, expected) in [
        ("", "the file of accounts names none"),
        ("shop", "line 1 of the accounts: it is not NAME=KEY"),
        (
            "\nshop=???",
            "line 2 of the accounts: account `shop`: AccountKey is not Base64",
        ),
        (
            "S=c2VjcmV0",
            "the account name \"S\" is not of 3 to 24 lower-case letters and digits",
        ),
    ] {
        std::fs::write(folder.path().join("accounts"), lines).expect("written");
        let arguments = ["serve", "--url", "memory:", "--accounts", "accounts"];
        let refused = queues(&arguments, folder.path())
            .output()
            .expect("it starts");
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(
            told.contains(expected) && !told.contains("c2VjcmV0"),
            "{told}"
        );
    }
}

#[test]
fn a_storage_that_is_a_service_itself_is_not_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["serve", "--url", "azure://shop"];
    let refused = queues(&arguments, folder.path())
        .output()
        .expect("it starts");
    assert_eq!(refused.status.code(), Some(4));
}
