//! Every invoice is exact to the cent when processes are killed: on SQLite, on Azurite, and on PostgreSQL.

use std::process::{Command, Stdio};

/// Runs the program `CRASH_TIMES` times, or once, and at most `most` times, with the seeds from `CRASH_SEED` on. It compares the
/// invoices itself.
fn is_exact(most: u64, url: impl Fn(u64) -> Option<String>) {
    let number = |name| {
        let set = std::env::var(name).ok()?;
        Some(set.parse::<u64>().expect("CRASH_… is a number"))
    };
    let seed = number("CRASH_SEED").unwrap_or_else(|| std::process::id().into());
    for run in 0..number("CRASH_TIMES").unwrap_or(1).min(most) {
        println!("CRASH_SEED={}", seed + run);
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_billing"));
        // However slow the machine is.
        command.args("--records 3000 --tenants 20 --kills 8 --workers 2 --within 36000".split(' '));
        command.arg(format!("--seed={}", seed + run)).arg("--plot");
        command.arg(folder.path().join("billing.svg"));
        command.args(url(run).map(|url| format!("--url={url}")));
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("with 8 kills"));
    }
}

#[test]
fn every_invoice_is_exact_when_processes_are_killed() {
    is_exact(u64::MAX, |_| None);
}

#[test]
fn a_run_that_misses_its_objective_fails_with_the_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_billing"));
    command.args("--records 400 --tenants 4 --kills 0 --workers 1 --within 0 --plot".split(' '));
    command.arg(folder.path().join("billing.svg"));
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("every invoice is exact"), "{said}{error}");
    assert_eq!(output.status.code(), Some(1), "{said}{error}");
    let missed = "s; the objective of 0 s is missed by ";
    assert!(error.contains(missed), "{error}");
}

#[cfg(feature = "azure")]
#[test]
#[ignore = "needs Azurite; `cargo xtask test --all` runs it"]
fn every_invoice_is_exact_on_azurite_when_processes_are_killed() {
    // One for each run, so that its queues are new.
    let accounts = ["first", "second", "third"];
    let azurite = queue_tests::azurite::Azurite::start(&accounts).expect("it starts");
    let account = |run: u64| azurite.connection_string(accounts[run as usize]);
    is_exact(3, |run| Some(format!("sharded:4|{}", account(run))));
}

#[cfg(feature = "postgres")]
#[test]
#[ignore = "needs PostgreSQL; `cargo xtask test --all` runs it"]
fn every_invoice_is_exact_on_postgresql_when_processes_are_killed() {
    let server = queue_tests::postgres::PostgresServer::start().expect("it starts");
    let url = |run: u64| format!("sharded:4|{}?schema=billing_{run}", server.url());
    is_exact(u64::MAX, |run| Some(url(run)));
}
