//! Each program prints what its documentation says.

mod expected;

use std::collections::BTreeSet;
use std::fs;

use assert_cmd::Command;

/// A test for each program that needs no server.
macro_rules! programs {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let mut program = Command::new(env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
                program.assert().success().stdout(expected::output(stringify!($name)));
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

programs! { batch groups lanes layer notifier packs payloads request router schedule status transaction turns }

#[test]
fn without_a_database_the_program_says_what_it_needs() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_transaction_postgres"));
    let run = program
        .env_remove("QUEUE_URL")
        .assert()
        .failure()
        .stdout("");
    let said = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
    assert!(
        said.contains("postgres://USER:PASSWORD@HOST/DATABASE"),
        "{said}"
    );
}

#[test]
fn each_program_has_a_test_and_a_link_in_the_readme() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = fs::read_to_string(format!("{root}/README.md")).expect("the README");
    let entries = fs::read_dir(format!("{root}/examples/tour/src/bin")).expect("the programs");
    let files = entries.map(|entry| entry.expect("a file").file_name().into_string());
    let files: BTreeSet<_> = files.map(|name| name.expect("it is text")).collect();

    let tested = TESTED.iter().chain(&["transaction_postgres"]);
    assert_eq!(files, tested.map(|name| format!("{name}.rs")).collect());
    let linked = |file: &&String| !readme.contains(&format!("(examples/tour/src/bin/{file})"));
    let missing: Vec<_> = files.iter().filter(linked).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
