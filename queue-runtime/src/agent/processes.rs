use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use queue_core::internal::LockExt as _;
use queue_core::{Failure, QueueName};

use super::attach::{AGENT, MARK, VARIABLE};
use super::instance::{Ended, Instance, Instances, Report};

/// For how long an attached process may be silent before it needs a restart. It reports each second.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest line that is kept together, and the number of lines that wait to be passed on.
const MAX_LINE: u64 = 64 * 1024;
const MAX_WAITING: usize = 1_024;

/// Instances that are processes on this machine, of one command.
///
/// Their standard input is a pipe from the agent's process. A program that calls [`attach`](super::attach) stops when that ends:
/// because it is asked to, or because the agent was killed; on Linux, what it prints then goes to the standard error. Other programs are asked by SIGTERM, on Linux and macOS, and go on
/// when the agent is killed. What a process writes to its standard output is passed on, except for its reports, which are lines of
/// it, and loses lines if the agent's own output is not read; its standard error is the agent's. An attached process that is silent
/// for a minute is replaced.
///
/// Dropping this closes all those pipes, and does not wait.
///
/// ```
/// use std::process::Command;
/// use queue_runtime::agent::Processes;
///
/// let mut command = Command::new("order-worker");
/// command.args(["--queue", "orders"]);
/// let workers = Processes::new(command);
/// ```
#[derive(Debug)]
pub struct Processes {
    command: Command,
    running: HashMap<String, Process>,
    /// Takes the lines that are passed on. Started with the first process.
    output: Option<SyncSender<Vec<u8>>>,
}

/// The last report of a process, and when it was read.
type Latest = Arc<Mutex<Option<(Instant, Report)>>>;

#[derive(Debug)]
struct Process {
    child: Child,
    report: Latest,
    is_stopping: bool,
    /// When it is killed, if it is stopping and has not ended before.
    kill_at: Option<Instant>,
}

impl Processes {
    /// Creates instances of this command. None is started yet.
    #[must_use]
    pub fn new(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self {
            command,
            running: HashMap::new(),
            output: None,
        }
    }
}

#[async_trait]
impl Instances for Processes {
    async fn start(&mut self, queue: &QueueName) -> Result<String, Failure> {
        self.command.env(VARIABLE, queue.as_str());
        self.command.env(AGENT, std::process::id().to_string());
        let passed_on = match &self.output {
            Some(output) => output.clone(),
            None => {
                let (output, lines) = sync_channel(MAX_WAITING);
                thread("queue-agent-output", move || pass_on(&lines))?;
                self.output.insert(output).clone()
            }
        };
        let mut child = self.command.spawn().map_err(|error| {
            let program = self.command.get_program().display();
            format!("failed to start `{program}`: {error}")
        })?;
        let report = Latest::default();
        let (output, latest) = (child.stdout.take(), Arc::clone(&report));
        let process = child.id();
        let reading = thread("queue-agent-reports", move || {
            if let Some(output) = output {
                read(BufReader::new(output), process, &latest, &passed_on);
            }
        });
        if let Err(error) = reading {
            // Its output would fill the pipe.
            drop(child.kill());
            drop(child.wait());
            return Err(error.into());
        }
        let id = child.id().to_string();
        let process = Process {
            child,
            report,
            is_stopping: false,
            kill_at: None,
        };
        self.running.insert(id.clone(), process);
        Ok(id)
    }

    async fn stop(&mut self, id: &str, grace: Duration) -> Result<(), Failure> {
        let Some(process) = self.running.get_mut(id) else {
            return Ok(());
        };
        if process.is_stopping {
            return Ok(());
        }
        drop(process.child.stdin.take());
        // One that reports has attached itself, and would take the signal for a second one.
        if process.report.hold().is_none() {
            terminate(&process.child)?;
        }
        process.is_stopping = true;
        process.kill_at = Instant::now().checked_add(grace);
        Ok(())
    }

    fn are_local(&self) -> bool {
        true
    }

    async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
        let listed = self.running.iter_mut();
        let listed: Vec<_> = listed.map(|(id, process)| process.listed(id)).collect();
        self.running.retain(|id, _| {
            !listed
                .iter()
                .any(|one| one.id == *id && one.ended.is_some())
        });
        Ok(listed)
    }
}

impl Process {
    fn listed(&mut self, id: &str) -> Instance {
        match self.child.try_wait() {
            Ok(Some(status)) => return Instance::ended(id, ended(status)),
            Ok(None) => {}
            // Somebody else has waited for it.
            Err(error) => {
                let how = format!("not known: {error}");
                let success = false;
                return Instance::ended(id, Ended { success, how });
            }
        }
        if self.kill_at.is_some_and(|at| Instant::now() >= at)
            && let Err(error) = self.child.kill()
        {
            tracing::warn!(id, %error, "failed to kill an instance that does not stop");
        }
        let mut instance = Instance::running(id);
        if let Some((at, report)) = &*self.report.hold() {
            let mut report = report.clone();
            if at.elapsed() > SILENCE {
                let silence = format!("it has not reported for {:.0?}", at.elapsed());
                report.needs_restart.get_or_insert(silence);
            }
            instance.report = Some(report);
        }
        instance
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map(drop)
}

fn ended(status: ExitStatus) -> Ended {
    Ended {
        success: status.success(),
        how: status.to_string(),
    }
}

/// Keeps the last report, and passes on all else.
fn read(mut output: impl BufRead, process: u32, latest: &Latest, passed_on: &SyncSender<Vec<u8>>) {
    let mut is_losing = false;
    loop {
        let mut line = Vec::new();
        let mut limited = output.by_ref().take(MAX_LINE);
        match limited.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        // It may follow what was printed without an end of its line.
        let mark = MARK.as_bytes();
        let at = line.windows(mark.len()).position(|part| part == mark);
        if let Some(at) = at {
            match serde_json::from_slice::<Report>(&line[at + mark.len()..]) {
                // Those of processes that it has started, with its environment and output, are not its own. A program that
                // writes its reports itself need not say which process it is.
                Ok(report) if report.process == process || report.process == 0 => {
                    *latest.hold() = Some((Instant::now(), report));
                }
                Ok(_) => {}
                // Perhaps it is from another release.
                Err(error) => {
                    tracing::warn!(process, %error, "an instance has reported what cannot be read");
                }
            }
            line.truncate(at);
        }
        if line.is_empty() {
            continue;
        }
        match passed_on.try_send(line) {
            Ok(()) => is_losing = false,
            Err(TrySendError::Full(_)) => {
                if !is_losing {
                    tracing::warn!(
                        process,
                        "the output of an agent is not read; lines of an instance are lost"
                    );
                }
                is_losing = true;
            }
            // The agent has ended.
            Err(TrySendError::Disconnected(_)) => return,
        }
    }
}

fn pass_on(lines: &Receiver<Vec<u8>>) {
    for line in lines {
        // Whoever reads the agent's output may be gone.
        let _ = io::stdout().lock().write_all(&line);
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn terminate(child: &Child) -> Result<(), Failure> {
    let pid = rustix::process::Pid::from_child(child);
    match rustix::process::kill_process(pid, rustix::process::Signal::TERM) {
        // It has ended.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::retry(error)),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn terminate(_: &Child) -> Result<(), Failure> {
    Ok(())
}
