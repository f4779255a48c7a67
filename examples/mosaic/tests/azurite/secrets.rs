//! Keys appear in no log.

use queue_tests::azurite::KEY;
use tempfile::TempDir;

use crate::location;
use crate::support::{job, output, pictures};

/// The key, in Base64 or as the `Debug` output of its bytes, and the header that is made of it.
const SECRETS: [&str; 3] = [KEY, "113, 117, 101, 117, 101, 45", "SharedKey "];

#[test]
fn trace_logs_contain_no_secret() {
    let (pictures, scratch) = (pictures(), TempDir::new().expect("a folder"));
    let out = scratch.path().join("out.png");
    let mut run = job("run", pictures.path(), &location("secretive"), &out);
    let made = output(run.env("RUST_LOG", "trace"));
    let log = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{log}");
    assert!(log.contains("TRACE"), "nothing was logged");
    let has_secret = |line: &&str| SECRETS.iter().any(|secret| line.contains(secret));
    assert_eq!(log.lines().find(has_secret), None);
}
