use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Returns whether a program is installed and runs.
pub(crate) fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let mut command = Command::new(program);
    let status = command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Runs a command to its end. The error says that the command failed to do `operation`, a verb phrase.
pub(crate) fn run(command: &mut Command, operation: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("failed to {operation}: {status}")),
        Err(error) => Err(format!("failed to {operation}: it did not start: {error}")),
    }
}

/// What is kept of a program's output; the rest is shown at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Nothing,
    /// The standard output.
    Output,
    /// The standard output and the errors.
    All,
}

/// How a program has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    /// The processor time of the program and of all processes that it has waited for; zero where the system does not
    /// tell.
    pub(crate) worked: Duration,
}

/// How long a program that has ended may have left processes that write to its output.
const LEFT_BEHIND: Duration = Duration::from_secs(30);

/// Runs a command to its end, and measures it.
///
/// # Errors
/// Fails if the command does not start, its output cannot be read, or a process that it left holds the output open.
pub(crate) fn measure(mut command: Command, kept: Kept) -> io::Result<Ended> {
    let (mut reader, writer) = io::pipe()?;
    match kept {
        Kept::Nothing => drop(writer),
        Kept::Output => drop(command.stdout(writer)),
        Kept::All => drop(command.stdout(writer.try_clone()?).stderr(writer)),
    }
    let mut child = command.spawn()?;
    // The pipe ends when nobody can write to it.
    drop(command);
    let (sender, output) = mpsc::channel();
    thread::spawn(move || {
        let mut output = Vec::new();
        let read = reader.read_to_end(&mut output).map(|_| output);
        // Nobody waits for output any more if a process has been left behind.
        let _ = sender.send(read);
    });
    let worked = processor_time(&child).unwrap_or_default();
    let status = child.wait()?;
    let output = output.recv_timeout(LEFT_BEHIND).map_err(|_| {
        io::Error::other("a process that it started still runs and holds its output open")
    })??;
    Ok(Ended {
        status,
        output,
        worked,
    })
}

/// Waits for the end of the process, whose processor time the system tells only before anybody asks for its status.
#[cfg(target_os = "linux")]
fn processor_time(child: &Child) -> Option<Duration> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    /// The tick of Linux's times, on nearly all architectures.
    const TICK: Duration = Duration::from_millis(10);
    let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(child)), ends).ok()?;
    let fields = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The name, in parentheses, may contain `)` and spaces; the times are the fields 14 to 17.
    let (_, fields) = fields.rsplit_once(") ")?;
    let times = fields.split(' ').skip(11).take(4);
    let ticks: Option<u32> = times.map(|ticks| ticks.parse::<u32>().ok()).sum();
    Some(TICK * ticks?)
}

#[cfg(not(target_os = "linux"))]
fn processor_time(_: &Child) -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_not_installed_and_does_not_run() {
        assert!(!is_installed("no-such-program"));
        let error = run(&mut Command::new("no-such-program"), "make it");
        let error = error.expect_err("the program is missing");
        assert!(
            error.starts_with("failed to make it: it did not start: "),
            "{error}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_processor_time_and_the_output_are_those_of_all_processes() {
        let mut shell = Command::new("sh");
        // A process of its own for the loop, and a name with what separates the fields.
        let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo out; echo err >&2";
        shell.args(["-c", &format!("sh -c '{count}'; exit 3"), ") 1 2"]);
        let ended = measure(shell, Kept::All).expect("it runs");
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(ended.output, b"out\nerr\n");
        assert!(ended.worked > Duration::ZERO, "{ended:?}");
    }
}
