//! The steps of `cargo xtask test` and of `cargo xtask check`, a row each.
//!
//! `cargo xtask test` takes a quarter of an hour. What takes long, and what few changes break, is left to
//! `cargo xtask test --all`, which CI runs.
//!
//! All steps use one target directory and, except for the checks of feature sets, the whole workspace with all
//! features, so that no step invalidates what another built. A suite that needs more than the toolchain, or that mostly
//! waits, is a target with `test = false`, and has a row here.

use crate::step::{Need, Run, Step};

/// The steps worth waiting for while one works.
pub(crate) const CHECK: &[Step] = &[
    cargo("format", "fmt --all --check"),
    cargo("weight", "xtask weigh"),
    EVERYTHING,
    cargo(
        "quick tests",
        "test --no-fail-fast --workspace --all-features --lib --bins --test backends",
    ),
];

const EVERYTHING: Step = lint("clippy", "--workspace --all-targets --all-features");

/// Steps that do not wait run one after another, since cargo uses all processors; beside them run those that wait, some
/// at once, and the longest first.
pub(crate) const TEST: &[Step] = &[
    cargo("format", "fmt --all --check"),
    cargo("weight", "xtask weigh"),
    cargo("dependencies", "xtask dependencies"),
    step("build", Need::Nothing, Run::Build),
    EVERYTHING,
    // `--all-targets` does not include targets with `test = false`.
    lint(
        "clippy: tests that run only when named",
        "--workspace --all-features --test *",
    ),
    // As few sets of features as find what a user could meet: each checks dependencies again, since their features differ.
    lint(
        "clippy: queue-runtime without features",
        "--package storage-queues --no-default-features",
    ),
    // Without `testing`, which all tests have.
    long(lint(
        "clippy: queue-runtime with its default features",
        "--package storage-queues",
    )),
    long(lint(
        "clippy: queue-runtime with `azure` alone",
        "--package storage-queues --no-default-features --features azure",
    )),
    long(lint(
        "clippy: queue-runtime with `postgres` alone",
        "--package storage-queues --no-default-features --features postgres",
    )),
    // This checks also `queue-core` without features.
    long(lint(
        "clippy: the engines without the runtime",
        "--package storage-queues-azure --package storage-queues-nats --package storage-queues-postgres --package storage-queues-sqlite",
    )),
    long(lint(
        "clippy: queue-core with `conformance`",
        "--package storage-queues-core --no-default-features --features conformance",
    )),
    long(cargo("the oldest direct dependencies", "xtask oldest")),
    lint(
        "clippy: mosaic with its default features",
        "--package mosaic --all-targets",
    ),
    Step {
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        ..cargo("docs", "doc --workspace --all-features --no-deps")
    },
    cargo(
        "examples in the documentation",
        "test --no-fail-fast --workspace --all-features --doc",
    ),
    long(Step {
        // Nobody debugs a release build, which this step alone makes.
        environment: &[("CARGO_PROFILE_RELEASE_DEBUG", "false")],
        ..step(
            "instructions of a message",
            Need::Valgrind,
            Run::Cargo("run --release --package queue-instructions"),
        )
    }),
    long(waiting("files of a message", Need::Valgrind, &["way"], "")),
    long(Step {
        // As a newer version of the engine, beside the programs of this workspace.
        environment: &[("RUSTFLAGS", "--cfg queue_sqlite_next")],
        ..cargo(
            "migrations: two versions on one file, rusqlite_migration and sqlx",
            "test --locked --manifest-path tests/migrations/Cargo.toml --target-dir target/migrations",
        )
    }),
    Step {
        waits: true,
        ..step(
            "tests",
            Need::Nothing,
            Run::Tests(&["processes", "ui", "it", "backends"]),
        )
    },
    // Five minutes, and no work.
    long(waiting(
        "an idle listener on Azurite",
        Need::Azurite,
        &["azurite"],
        "idle::",
    )),
    waiting(
        "tests against Azurite",
        Need::Azurite,
        &["azurite"],
        "--skip idle:: --test-threads=24",
    ),
    long(Step {
        environment: &[("QUEUE_SERVER", "built")],
        ..waiting(
            "tests against the server",
            Need::Nothing,
            &["azurite"],
            "--skip idle:: --skip payloads:: --test-threads=24",
        )
    }),
    long(waiting(
        "crashes",
        Need::Nothing,
        &["crash"],
        "--test-threads=4",
    )),
    waiting(
        "payloads in a container of Azurite",
        Need::Azurite,
        &["it"],
        "--ignored payloads::azurite",
    ),
    waiting(
        "the mosaic and the command line over Azurite",
        Need::Azurite,
        &["mosaic-azurite", "queue-cli-azurite"],
        "",
    ),
    long(waiting(
        "billing over Azurite under kills",
        Need::Azurite,
        &["billing-kills"],
        "--ignored azurite",
    )),
    long(waiting(
        "billing over PostgreSQL under kills",
        Need::Postgres,
        &["billing-kills"],
        "--ignored postgresql",
    )),
    waiting(
        "the mosaic, the short examples and the command line over PostgreSQL",
        Need::Postgres,
        &[
            "mosaic-postgres",
            "queue-cli-postgres",
            "ledger-postgres",
            "tour-postgres",
        ],
        "",
    ),
    long(waiting(
        "the mosaic's page in a browser",
        Need::Browser,
        &["mosaic-browser"],
        "",
    )),
    waiting("harmed requests", Need::Azurite, &["harm"], ""),
    waiting(
        "tests with other languages' packages",
        Need::Peers,
        &["interop"],
        "",
    ),
    Step {
        environment: &[("QUEUE_SERVER", "built")],
        ..waiting(
            "other languages' packages on the server",
            Need::Peers,
            &["interop"],
            "",
        )
    },
    long(Step {
        environment: &[("QUEUE_SERVER", "postgres")],
        ..waiting(
            "tests against the server on PostgreSQL",
            Need::Postgres,
            &["azurite"],
            "--skip idle:: --skip payloads:: --test-threads=24",
        )
    }),
    waiting("tests with a NATS server", Need::Nats, &["nats"], ""),
    waiting(
        "tests with PostgreSQL",
        Need::Postgres,
        &["postgres", "runtime-postgres"],
        "--skip pooled",
    ),
    waiting(
        "PostgreSQL behind a pooler",
        Need::Pooler,
        &["postgres", "runtime-postgres"],
        "pooled",
    ),
    long(waiting(
        "kills of processes and of PostgreSQL, its network and a failover",
        Need::Postgres,
        &["crash-postgres"],
        "--test-threads=1",
    )),
    long(waiting(
        "a clock of PostgreSQL that steps",
        Need::PostgresClock,
        &["clock-postgres"],
        "",
    )),
    long(waiting(
        "a full disk of PostgreSQL",
        Need::PostgresDisk,
        &["disk-postgres"],
        "",
    )),
    waiting(
        "a full disk and mounted files",
        Need::Mount,
        &["full_disk", "mounts"],
        "",
    ),
    long(waiting(
        "billing under kills",
        Need::Nothing,
        &["billing-kills"],
        "",
    )),
    long(step(
        "inputs that look for a failure",
        Need::Fuzzer,
        Run::Cargo("xtask fuzz"),
    )),
    long(waiting(
        "power loss and failing writes",
        Need::Preload,
        &["power"],
        "",
    )),
];

const fn step(name: &'static str, need: Need, run: Run) -> Step {
    Step {
        name,
        need,
        run,
        environment: &[],
        waits: false,
        long: false,
    }
}

const fn cargo(name: &'static str, arguments: &'static str) -> Step {
    step(name, Need::Nothing, Run::Cargo(arguments))
}

const fn lint(name: &'static str, what: &'static str) -> Step {
    step(name, Need::Nothing, Run::Lint(what))
}

const fn long(step: Step) -> Step {
    Step { long: true, ..step }
}

/// Programs of tests that mostly wait.
const fn waiting(
    name: &'static str,
    need: Need,
    programs: &'static [&'static str],
    arguments: &'static str,
) -> Step {
    Step {
        waits: true,
        ..step(name, need, Run::Suites(programs, arguments))
    }
}

#[cfg(test)]
mod tests;
