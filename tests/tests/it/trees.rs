//! What an application compiles: only the engines that it asks for.

use std::process::Command;

/// Returns the names of the packages that the runtime is built from with these features.
fn packages(features: &str) -> Vec<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--offline",
        "--locked",
        "--package",
        "storage-queues",
    ])
    .args(["--no-default-features", "--features", features])
    .args([
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ])
    .current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = tree.output().expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Asserts which of these packages an application with these features compiles.
fn assert_compiled(features: &str, compiled: &[&str], not: &[&str]) {
    let packages = packages(features);
    let has = |name: &&&str| packages.iter().any(|package| package == **name);
    let missing: Vec<_> = compiled.iter().filter(|name| !has(name)).collect();
    let needless: Vec<_> = not.iter().filter(has).collect();
    assert!(
        missing.is_empty() && needless.is_empty(),
        "with {features:?}: {missing:?} are missing, {needless:?} are not needed"
    );
}

const SQL: [&str; 3] = ["storage-queues-sqlite", "rusqlite", "libsqlite3-sys"];
const AZURE: [&str; 3] = ["storage-queues-azure", "azure_core", "hyper"];
const TLS: [&str; 2] = ["rustls", "aws-lc-rs"];
const NATS: [&str; 2] = ["storage-queues-nats", "async-nats"];
const POSTGRES: [&str; 2] = ["storage-queues-postgres", "tokio-postgres"];

#[test]
fn an_application_on_azure_compiles_no_sql() {
    assert_compiled(
        "azure",
        &[&AZURE[..], &TLS].concat(),
        &[&SQL[..], &NATS, &POSTGRES].concat(),
    );
}

#[test]
fn an_application_on_postgresql_compiles_neither_another_engine_nor_tls_nor_sqlx() {
    let others = [&SQL[..], &AZURE, &TLS, &NATS, &["sqlx"]].concat();
    assert_compiled("postgres", &POSTGRES, &others);
}

#[test]
fn an_application_on_sqlite_compiles_no_tls() {
    assert_compiled(
        "sqlite",
        &SQL,
        &[&AZURE[..], &TLS, &NATS, &POSTGRES].concat(),
    );
}

#[test]
fn an_application_in_memory_compiles_no_engine() {
    assert_compiled(
        "",
        &[],
        &[&SQL[..], &AZURE, &TLS, &NATS, &POSTGRES].concat(),
    );
}

#[test]
fn the_engines_and_the_server_do_not_depend_on_the_runtime_or_on_each_other() {
    for engine in [
        "storage-queues-sqlite",
        "storage-queues-azure",
        "storage-queues-nats",
        "storage-queues-postgres",
    ] {
        assert_not_needed(engine, "all", &["storage-queues"]);
    }
    assert_not_needed(
        "storage-queues-server",
        "normal,build",
        &[
            "storage-queues",
            "storage-queues-azure",
            "storage-queues-sqlite",
        ],
    );
    assert_not_needed(
        "storage-queues-azure",
        "normal,build",
        &["storage-queues-server"],
    );
    assert_not_needed(
        "storage-queues-azure-wire",
        "normal,build",
        &["storage-queues-core"],
    );
}

/// Asserts that a package depends on none of these.
fn assert_not_needed(package: &str, edges: &str, others: &[&str]) {
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--offline",
        "--locked",
        "--package",
        package,
        "--edges",
        edges,
    ])
    .args(["--prefix", "none", "--format", "{p}"])
    .current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = tree.output().expect("cargo runs");
    assert!(output.status.success(), "{package}");
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    for other in others {
        let is_other = |line: &&str| line.split(' ').next() == Some(*other);
        let found = lines.lines().find(is_other);
        assert_eq!(found, None, "{package} depends on {other}");
    }
}
