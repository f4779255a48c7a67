//! Keys and signatures appear in no log and no error.

use std::error::Error;

use mosaic::storage::azure::{Account, AzureError};
use mosaic::storage::blob::{BlobName, Container};
use mosaic::storage::store::{Created, Store, StoreError};
use queue_tests::azurite::KEY;
use tempfile::TempDir;

use crate::location;
use crate::server::SERVER;
use crate::support::{job, output, pictures};

/// Whether a text contains a key, in Base64 or as the `Debug` output of its bytes, or a signature.
fn has_secret(text: &str) -> bool {
    [KEY, "113, 117, 101, 117, 101, 45", "SharedKey ", "canary"]
        .iter()
        .any(|secret| text.contains(secret))
}

fn full_text(error: &(dyn Error + 'static)) -> String {
    let mut all = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        all = format!("{all} {error} {error:?}");
        cause = error.source();
    }
    all
}

#[test]
fn trace_logs_contain_no_secret() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let out = scratch.path().join("out.png");
    let mut run = job("run", pictures.path(), &location("secretive"), &out);
    let made = output(run.env("RUST_LOG", "trace"));
    let log = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{log}");
    assert!(log.contains("TRACE"), "nothing was logged");
    let line = log.lines().find(|line| has_secret(line));
    assert_eq!(line, None);
}

#[tokio::test]
async fn errors_name_the_cause_and_contain_no_secret() {
    let given = SERVER.connection_string("secretive");
    let wrong = given.replace(KEY, "bW9zYWljLWNhbmFyeS13cm9uZw==");
    let signed =
        "AccountName=secretive;SharedAccessSignature=sv=2021-12-02&sig=canary;BlobEndpoint=";
    let endpoint = given.rsplit('=').next().expect("it is the last setting");
    let refused = async |given: String| match Store::azure(Account::parse(&given)).await {
        Err(error @ AzureError::Container { .. }) => full_text(&error),
        other => panic!("{other:?}"),
    };
    for (given, expected) in [
        (wrong, "status 403 Auth"),
        (format!("{signed}{endpoint}"), "status 403 "),
        (
            format!("{signed}http://127.0.0.1:1/secretive"),
            "Connection refused",
        ),
    ] {
        let text = refused(given).await;
        assert!(text.contains(expected), "{text}");
        assert!(!has_secret(&text), "{text}");
    }

    let store = Store::azure(Account::parse(&given))
        .await
        .expect("it is there");
    assert!(!has_secret(&format!("{store:?}")));
    let name = BlobName::new(Container::Status, &["once"]);
    let created = store.create(&name, "first").await.expect("created");
    assert_eq!(created, Created::New);
    let again = store.create(&name, "second").await.expect("found");
    assert_eq!(again, Created::Existed);
    assert_eq!(store.read(&name, 5).await.expect("read"), "first");
    let missing = store
        .read(&BlobName::new(Container::Status, &["never"]), 5)
        .await;
    assert!(
        matches!(missing, Err(StoreError::Missing(_))),
        "{missing:?}"
    );
}
