//! One database under two paths, as containers that share a volume see it: a mount of the file gives it a second log
//! and is refused; a mount of its folder is fine.
//!
//! The mounts are in a namespace of their own. That needs Linux, and a user who may create one.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use queue_crash::messages::CrashOrder;
use queue_runtime::QueueService;
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::service::ConnectError;
use queue_runtime::sqlite::rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;

const TEST: &str =
    "a_database_that_is_mounted_as_a_single_file_is_refused_and_one_in_a_mounted_folder_is_not";

/// Set for the process that sees the mounts, to the folder that contains all.
const INSIDE: &str = "QUEUE_MOUNTS";

#[tokio::test]
async fn a_database_that_is_mounted_as_a_single_file_is_refused_and_one_in_a_mounted_folder_is_not()
{
    if let Some(folder) = std::env::var_os(INSIDE) {
        return see_mounts(Path::new(&folder)).await;
    }
    let folder = TempDir::new().expect("a folder");
    for name in ["real", "folder"] {
        std::fs::create_dir(folder.path().join(name)).expect("created");
    }
    let service = connect(&folder.path().join("real/queue.db")).await;
    let service = service.expect("connects");
    submit(&service, "outside").await;
    let mount = r#"cd "$0" && : > "a file" && mount --bind real/queue.db "a file" && mount --bind real folder && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mount])
        .arg(folder.path())
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", TEST, "--nocapture"])
        .env(INSIDE, folder.path())
        .output()
        .expect("unshare is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{}: {said}{complaints}",
        output.status
    );
    assert_eq!(count(&service).await, 3, "what was acknowledged");
}

/// What a process does that sees the file by three paths.
async fn see_mounts(folder: &Path) {
    let (real, file) = (folder.join("real/queue.db"), folder.join("a file"));
    let refused = connect(&file).await.expect_err("it is a mount");
    assert!(
        refused.to_string().contains("mount its folder"),
        "{refused}"
    );

    let service = connect(&real).await.expect("it is no mount");
    submit(&service, "by its own path").await;
    let mounted = connect(&folder.join("folder/queue.db")).await;
    submit(&mounted.expect("its folder is a mount"), "by its folder").await;

    // So that a connection with another log can read it.
    let connection = queue_runtime::sqlite::connect(service.backend()).expect("a connection");
    let emptied = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
    assert_eq!(emptied, Ok(0));
    let mut connection = Connection::open(&file).expect("opened");
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let tx = tx.expect("begun");
    let refused = service.submit_within(&tx, CrashOrder::named("by the file"));
    let problem = refused.expect_err("its connection is to a mount").kind;
    let SubmitErrorKind::Storage(error) = problem else {
        panic!("{problem}");
    };
    assert!(error.to_string().contains("mount its folder"), "{error}");
}

async fn connect(file: &Path) -> Result<QueueService, ConnectError> {
    QueueService::connect(&format!("sqlite:{}", file.display())).await
}

async fn submit(service: &QueueService, name: &str) {
    let submitted = service.submit(CrashOrder::named(name)).await;
    submitted.expect("submitted");
}

async fn count(service: &QueueService) -> usize {
    let orders = service.queue::<CrashOrder>().any();
    let properties = orders.properties().await.expect("properties");
    properties.approximate_count
}
