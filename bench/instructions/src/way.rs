//! The files that a message passes on SQLite, from its receive to its settlement: those with a function that is called for
//! each message.

use std::collections::{BTreeSet, HashMap};
use std::future::{Ready, ready};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use queue_core::ManualClock;
use queue_instructions::{Outcome, Parcel};
use queue_runtime::{QueueService, Received};
use tokio::sync::Semaphore;

const MESSAGES: u32 = 100;

/// How many traces must have a file. Tasks that wait for others are woken once or for each message, as the machine
/// happens to be busy.
const TRACES: usize = 3;

const HEAD: &str = "\
# The files with a function that is called for each message of a listener on SQLite, from its receive to its settlement, in
# a build without optimisation and with a clock that stands still, as valgrind counts calls. The step `files of a message`
# of `cargo xtask test --all` fails if a file is missing here. To write the list anew:
# `cargo run --package queue-instructions --features sqlite -- way --write`. The commit that adds a file says why.
";

/// The packages whose files are listed, as their symbols begin, with the folder of their sources.
const PACKAGES: [(&str, &str); 4] = [
    ("queue_clock", "queue-clock/src"),
    ("queue_core", "queue-core/src"),
    ("queue_runtime", "queue-runtime/src"),
    ("queue_sqlite", "backends/sqlite/src"),
];

/// Puts so many messages into a new file, or handles those that are there, each alone.
///
/// The time stands still: what is called at intervals would seem to be called for each message if the machine is slow. The
/// background has no thread of its own, which would be woken once or for each message, as the machine happens to be busy.
pub(crate) async fn perform(work: &str, file: &str) -> Outcome<()> {
    let builder = QueueService::builder(&format!("sqlite:{file}"));
    let service = builder
        .clock(Arc::new(ManualClock::new()))
        .on_current_runtime()
        .connect()
        .await?;
    if work == "fill" {
        service.submit_all((0..MESSAGES).map(Parcel::new)).await?;
        return Ok(());
    }
    let handled = Arc::new(Semaphore::new(0));
    let each = Arc::clone(&handled);
    let listener = service.listener(move |_: Received<Parcel>| handle(&each));
    let listener = listener.tasks(1).max_in_flight(1).start()?;
    drop(handled.acquire_many(MESSAGES).await?);
    listener.shutdown(Duration::from_secs(60)).await;
    Ok(())
}

fn handle(handled: &Semaphore) -> Ready<()> {
    handled.add_permits(1);
    ready(())
}

/// Returns the list of the files, below its head.
pub(crate) fn files() -> Outcome<String> {
    let folder = std::env::temp_dir().join(format!("queue-way-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let found = in_each_trace(&folder);
    std::fs::remove_dir_all(&folder)?;
    let files = found?;
    let lines: String = files.iter().map(|file| format!("{file}\n")).collect();
    Ok(format!("{HEAD}# {} files\n{lines}", files.len()))
}

fn in_each_trace(folder: &Path) -> Outcome<BTreeSet<String>> {
    let mut files = trace(folder, 0)?;
    for number in 1..TRACES {
        let others = trace(folder, number)?;
        files.retain(|file| others.contains(file));
    }
    Ok(files)
}

fn trace(folder: &Path, number: usize) -> Outcome<BTreeSet<String>> {
    let queues = folder.join(format!("queues-{number}.db"));
    let calls = folder.join(format!("calls-{number}"));
    let this = std::env::current_exe()?;
    let run = |command: &mut Command, work: &str| -> Outcome<()> {
        let output = command.args(["way", work]).arg(&queues).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into())
    };
    run(&mut Command::new(&this), "fill")?;
    let mut valgrind = Command::new("valgrind");
    let out = format!("--callgrind-out-file={}", calls.display());
    // Threads take turns, whatever else the machine does.
    valgrind.args(["--tool=callgrind", "--fair-sched=yes", &out]);
    run(valgrind.arg(&this), "handle")?;
    let profile = std::fs::read_to_string(calls)?;
    let called = called(&profile);
    let per_message = |calls: &u64| *calls >= u64::from(MESSAGES);
    let functions = called.iter().filter(|(_, calls)| per_message(calls));
    Ok(functions.filter_map(|(name, _)| file_of(name)).collect())
}

/// Reads how often each function was called.
fn called(profile: &str) -> HashMap<&str, u64> {
    let (mut names, mut called) = (HashMap::new(), HashMap::new());
    let mut callee = "";
    for line in profile.lines() {
        let of = |prefix| line.strip_prefix(prefix);
        if let Some(function) = of("fn=").or_else(|| of("cfn=")) {
            // A name is written once, and is a number from then on.
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            let name = *names.entry(number).or_insert(name);
            if line.starts_with("cfn=") {
                callee = name;
            }
        } else if let Some(calls) = of("calls=") {
            let calls = calls
                .split(' ')
                .next()
                .and_then(|calls| calls.parse::<u64>().ok());
            *called.entry(callee).or_default() += calls.unwrap_or(0);
        }
    }
    called
}

/// Returns the file of a function: of its module, or of the type or trait that it is a method of.
fn file_of(function: &str) -> Option<String> {
    // `<a::Type as b::Trait>::method`, `a::module::<impl b::Type>::method`, or `a::module::function`.
    let path = function
        .trim_start_matches(['<', '&'])
        .trim_start_matches("mut ");
    let end = path.find(['<', '>', ' ']).unwrap_or(path.len());
    let mut parts = path[..end].split("::").filter(|part| !part.is_empty());
    let package = parts.next()?;
    let (_, folder) = PACKAGES.iter().find(|(name, _)| *name == package)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = PathBuf::from(folder).join("lib.rs");
    let mut module = PathBuf::from(folder);
    for part in parts {
        module.push(part);
        let files = [module.with_extension("rs"), module.join("mod.rs")];
        match files.into_iter().find(|file| root.join(file).is_file()) {
            Some(file) => found = file,
            None => break,
        }
    }
    Some(found.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_in_the_file_of_its_module() {
        for (function, file) in [
            (
                "queue_runtime::kernel::lease::guard::Lease::hold",
                Some("queue-runtime/src/kernel/lease/guard.rs"),
            ),
            (
                "queue_runtime::kernel::listener::phase::Phase::reached::{{closure}}",
                Some("queue-runtime/src/kernel/listener/phase.rs"),
            ),
            (
                "<queue_runtime::extensions::meter::metered::Metered as queue_core::backend::contract::Backend>::apply",
                Some("queue-runtime/src/extensions/meter/metered.rs"),
            ),
            (
                "queue_runtime::kernel::settlement::poison::<impl queue_runtime::kernel::settlement::carry_out::Settling>::poison",
                Some("queue-runtime/src/kernel/settlement/poison.rs"),
            ),
            (
                "queue_sqlite::writer::upkeep::<impl queue_sqlite::writer::Writer>::admit",
                Some("backends/sqlite/src/writer/upkeep.rs"),
            ),
            (
                "<queue_core::name::QueueName as core::clone::Clone>::clone",
                Some("queue-core/src/name.rs"),
            ),
            (
                "core::ptr::drop_in_place<queue_core::name::QueueName>",
                None,
            ),
        ] {
            assert_eq!(file_of(function).as_deref(), file, "{function}");
        }
    }

    #[test]
    fn calls_are_added_up_and_names_remembered() {
        let profile = "fn=(1) a::b\n1 7\ncfn=(2) c::d\ncalls=3 0\n1 9\nfn=(2)\ncfn=(1)\ncalls=2 0\n\ncfn=(2)\ncalls=4 0\n";
        let called = called(profile);
        assert_eq!((called["a::b"], called["c::d"]), (2, 7));
    }
}
