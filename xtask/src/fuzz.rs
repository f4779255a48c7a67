use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{cargo, program};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/server/fuzz");

const TARGETS: [&str; 3] = ["requests", "signatures", "xml"];

/// What tells libFuzzer which code an input reaches: `cargo fuzz` says the same, and asks for a nightly compiler.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Returns why nothing can be fuzzed here, if so.
pub(crate) fn obstacle() -> Option<String> {
    (!program::is_installed("c++")).then(|| "there is no C++ compiler, `c++`".to_owned())
}

/// Feeds each target of the server with inputs for so many seconds.
pub(crate) fn run(seconds: u32) -> ExitCode {
    if let Some(why) = obstacle() {
        eprintln!("nothing can be fuzzed: {why}");
        return ExitCode::FAILURE;
    }
    let target = cargo::target().join("fuzz");
    let host = match cargo::host() {
        Ok(host) => host,
        Err(why) => {
            eprintln!("nothing can be fuzzed: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut build = cargo::command();
    // The target is named, so that only the programs are instrumented, and not what the build runs.
    build.args(["build", "--release", "--locked", "--target", &host]);
    build.current_dir(FOLDER);
    build.env("CARGO_TARGET_DIR", &target);
    build.env("RUSTFLAGS", INSTRUMENTED);
    if cargo::exit_code(&mut build, "the build of the fuzz targets") != ExitCode::SUCCESS {
        return ExitCode::FAILURE;
    }
    let programs = target.join(&host).join("release");
    for name in TARGETS {
        let ended = match fuzz(&programs, &target, name, seconds) {
            Ok(mut fuzz) => cargo::exit_code(&mut fuzz, name),
            Err(error) => {
                eprintln!("failed to make a folder for inputs of {name}: {error}");
                ExitCode::FAILURE
            }
        };
        if ended != ExitCode::SUCCESS {
            return ended;
        }
    }
    ExitCode::SUCCESS
}

fn fuzz(programs: &Path, target: &Path, name: &str, seconds: u32) -> io::Result<Command> {
    let corpus = target.join("corpus").join(name);
    std::fs::create_dir_all(&corpus)?;
    let seeds: PathBuf = [FOLDER, "seeds", name].iter().collect();
    let mut fuzz = Command::new(programs.join(name));
    fuzz.arg(corpus).arg(seeds);
    fuzz.arg(format!("-max_total_time={seconds}"));
    fuzz.arg(format!("-artifact_prefix={}/", target.display()));
    // A body as long as the server reads, and more.
    fuzz.args([
        "-max_len=140000",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        "-verbosity=0",
    ]);
    Ok(fuzz)
}
