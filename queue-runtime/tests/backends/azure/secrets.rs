//! Secrets (a key, a signature and receipts) must not appear in any output: each is a canary.

use std::error::Error as _;
use std::time::Duration;

use queue_core::backend::{BackendExt as _, NewMessage, PopReceipt, StorageId};
use queue_runtime::QueueService;
use queue_tests::{Written, is_alone};

use crate::azure::responder::{KEY, Reply, Responder, answer, builder, every_error, queue, with};

const RECEIPT: &str = "canaryreceiptgiven";
const NEW_RECEIPT: &str = "canaryreceiptgot";
const SIGNATURE: &str = "sv=2021-12-02&sp=raup&sig=canary%2Fsignature";

const CANARIES: [&str; 8] = [
    KEY,
    "canary-account-key",
    RECEIPT,
    NEW_RECEIPT,
    "canary%2Fsignature",
    "canary%2fsignature",
    "canary/signature",
    "SharedKey",
];

/// The log of all crates and threads of this process, at TRACE.
fn log() -> Written {
    let log = Written::default();
    let written = log.clone();
    tracing_subscriber::fmt()
        .with_env_filter("trace")
        .with_ansi(false)
        .with_writer(move || written.clone())
        .init();
    log
}

#[track_caller]
fn assert_clean(shown: &str) {
    for canary in CANARIES {
        if let Some(at) = shown.find(canary) {
            let from = shown[..at].rfind('\n').map_or(0, |at| at + 1);
            let until = shown[at..].find('\n').map_or(shown.len(), |end| at + end);
            panic!("`{canary}` in: {}", &shown[from..until]);
        }
    }
}

/// Returns all output of an error and of its sources.
fn shown(error: &queue_runtime::Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut next = error.source();
    while let Some(cause) = next {
        shown.push_str(&format!("{cause} {cause:?}"));
        next = cause.source();
    }
    shown
}

fn replies() -> Vec<Reply> {
    let message = format!(
        "<QueueMessagesList><QueueMessage><MessageId>1</MessageId>\
         <PopReceipt>{NEW_RECEIPT}</PopReceipt></QueueMessage></QueueMessagesList>"
    );
    let receipt = format!("x-ms-popreceipt: {NEW_RECEIPT}\r\n");
    let cut = format!("HTTP/1.1 200 OK\r\n{receipt}Content-Length: 999\r\n\r\n{message}");
    vec![
        Reply::Echo,
        // Lacks fields, so the error about it may quote it.
        Reply::Send(answer("200 OK", &receipt, &message)),
        Reply::Send(answer("201 Created", &receipt, &message)),
        Reply::Send(answer("204 No Content", &receipt, "")),
        Reply::Send(answer("500 Internal", &receipt, &message)),
        Reply::Send(answer("503 Busy", "", "")),
        Reply::Cut(String::new()),
        Reply::Cut(cut.clone()),
        Reply::Stall(cut),
    ]
}

#[test]
fn neither_errors_nor_logs_contain_a_secret() {
    if !is_alone("azure::secrets::neither_errors_nor_logs_contain_a_secret") {
        return;
    }
    let log = log();
    for reply in replies() {
        let responder = Responder::always(reply.clone());
        for url in [responder.with_key(), responder.with_signature(SIGNATURE)] {
            let errors = with(&url, Duration::from_millis(300), async |backend| {
                assert_clean(&format!("{backend:?} {backend:#?}"));
                every_error(&backend, RECEIPT).await
            });
            assert!(errors.len() >= 4, "{reply:?}: {errors:?}");
            for (_, error) in errors {
                assert_clean(&shown(&error));
            }
        }
        let sent = responder.requests().concat();
        assert!(sent.contains(RECEIPT) && sent.contains("canary%2Fsignature"));
        assert!(sent.contains("SharedKey"));
    }
    refused(&format!("http://127.0.0.1:1/acct?{SIGNATURE}"));
    refused(&format!(
        "AccountName=acct;AccountKey={KEY};QueueEndpoint=http://127.0.0.1:1/acct"
    ));
    successes();
    let logged = log.text();
    for proof in ["==> Request", "popreceipt=held-back", "hyper_util"] {
        assert!(logged.contains(proof), "the log does not contain `{proof}`");
    }
    assert_clean(&logged);
}

fn refused(url: &str) {
    let errors = with(url, Duration::from_secs(5), async |backend| {
        every_error(&backend, RECEIPT).await
    });
    for (_, error) in errors {
        assert_clean(&shown(&error));
    }
}

/// The receipts of successful operations are secret too.
fn successes() {
    let headers = format!(
        "x-ms-popreceipt: {NEW_RECEIPT}\r\nx-ms-time-next-visible: Thu, 01 Jan 2026 00:00:30 GMT\r\n"
    );
    let responder = Responder::always(Reply::Send(answer("204 No Content", &headers, "")));
    with(
        &responder.with_key(),
        Duration::from_secs(5),
        async |backend| {
            let (id, receipt) = (StorageId::new("1"), PopReceipt::new(RECEIPT));
            let (queue, second) = (&queue(), Duration::from_secs(1));
            let lease = backend.renew(queue, &id, &receipt, second, None).await;
            assert_clean(&format!("{:?}", lease.expect("updated")));
        },
    );
    let date = "Thu, 01 Jan 2026 00:00:30 GMT";
    let message = format!(
        "<QueueMessagesList><QueueMessage><MessageId>1</MessageId><InsertionTime>{date}\
         </InsertionTime><ExpirationTime>{date}</ExpirationTime><PopReceipt>{NEW_RECEIPT}</PopReceipt>\
         <TimeNextVisible>{date}</TimeNextVisible></QueueMessage></QueueMessagesList>"
    );
    let responder = Responder::always(Reply::Send(answer("201 Created", "", &message)));
    with(
        &responder.with_key(),
        Duration::from_secs(5),
        async |backend| {
            let put = backend.put(&queue(), NewMessage::new("body")).await;
            assert_clean(&format!("{:?}", put.expect("put")));
        },
    );
}

#[test]
fn builders_and_connect_errors_contain_no_secret() {
    let urls = [
        format!("AccountName=acct;AccountKey={KEY}"),
        format!("AccountKey={KEY};AccountName=acct;QueueEndpoint=ftp://x"),
        format!("AccountName=acct;AccountKey={KEY};{KEY}"),
        format!("AccountName=acct;AccountKey={KEY};{KEY}=x"),
        format!("AccountName={KEY};AccountKey={KEY}!"),
        format!("https://acct.queue.core.windows.net/?{SIGNATURE}"),
        format!("http://acct.queue.core.windows.net/?{SIGNATURE}"),
        format!("https://x:{KEY}@acct.queue.core.windows.net/?{SIGNATURE}"),
        format!("azure://acct?{SIGNATURE}"),
        format!("azures://acct?{SIGNATURE}"),
        format!("{KEY}://acct?{SIGNATURE}#"),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        for url in urls {
            assert_clean(&format!(
                "{:?} {:?}",
                builder(&url),
                QueueService::builder(&url)
            ));
            match QueueService::connect(&url).await {
                Ok(service) => assert_clean(&format!("{service:?}")),
                Err(error) => assert_clean(&format!("{error} {error:?}")),
            }
        }
    });
}
