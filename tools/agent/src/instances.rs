//! Instances of a program: the trait that starts, stops and lists them, those that are processes of a command, and those
//! that another scaler runs.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use queue_runtime::{Failure, QueueName};
use serde::{Deserialize, Serialize};

use crate::attach::{AGENT, MARK, VARIABLE};

/// Starts, stops and lists the instances of a program, for an [agent](crate). [`Processes`](Processes) implements the
/// trait for processes on this machine; implement it for containers, virtual machines or threads.
///
/// ```
/// use std::time::Duration;
/// use queue_agent::{Instance, Instances};
/// use queue_runtime::listener::ListenerPhase;
/// use queue_runtime::{Failure, ListenerHandle, Message, QueueName, QueueService, Received};
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// /// Instances that are listeners of this process.
/// struct InProcess {
///     service: QueueService,
///     running: Vec<(String, ListenerHandle)>,
///     started: usize,
/// }
///
/// #[async_trait::async_trait]
/// impl Instances for InProcess {
///     async fn start(&mut self, _: &[QueueName]) -> Result<String, Failure> {
///         let id = format!("listener {}", self.started);
///         self.started += 1;
///         self.running.push((id.clone(), self.service.listener(ship).start()?));
///         Ok(id)
///     }
///
///     async fn stop(&mut self, id: &str, grace: Duration) -> Result<(), Failure> {
///         let listener = self.running.iter().find(|(of, _)| of == id);
///         if let Some((_, listener)) = listener {
///             tokio::spawn(listener.clone().shutdown(grace));
///         }
///         Ok(())
///     }
///
///     async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
///         self.running.retain(|(_, listener)| listener.phase() != ListenerPhase::Stopped);
///         let running = self.running.iter();
///         Ok(running.map(|(id, _)| Instance::running(id)).collect())
///     }
/// }
/// ```
#[async_trait]
pub trait Instances: Send + 'static {
    /// Starts an instance that handles the messages of these queues, at least one, and returns its id, which no other
    /// instance has had. Does not wait until the instance is ready.
    ///
    /// # Errors
    /// An error if the instance could not be started. The agent tries again after a pause that grows.
    async fn start(&mut self, queues: &[QueueName]) -> Result<String, Failure>;

    /// Asks an instance to stop: to receive no more, to finish what it has, and to end. Does not wait for the end of
    /// the instance. Ends an instance that has not ended after `grace`. Does nothing for an instance that has ended, or
    /// was asked to stop before.
    ///
    /// # Errors
    /// An error if the instance could not be asked. The agent asks an instance again when it looks the next time.
    async fn stop(&mut self, id: &str, grace: Duration) -> Result<(), Failure>;

    /// Whether the instances run on this machine, so that they share its processors. By default the instances run
    /// elsewhere.
    fn are_local(&self) -> bool {
        false
    }

    /// Lists the instances, also those that are stopping. An instance that has ended may be listed once more, with how
    /// it has ended; an instance that is not listed has ended.
    ///
    /// # Errors
    /// An error if the instances are not known. After an error the agent changes nothing.
    async fn list(&mut self) -> Result<Vec<Instance>, Failure>;
}

/// An instance of a program, from [`Instances::list`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Instance {
    /// The id of the instance, such as that of a process.
    pub id: String,
    /// How the instance has ended, or `None` while it runs.
    pub ended: Option<Ended>,
    /// The last report of the instance. `None` before the first report, and for an instance that does not report.
    pub report: Option<Report>,
}

/// How an instance has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Whether the instance says that it has done all it had to, as a process does by the exit status 0.
    pub success: bool,
    /// How the instance has ended, in words, such as `exit status: 1`.
    pub how: String,
}

/// What an instance reports to its agent: the figures of its listeners on the agent's queues. See
/// [`attach`](crate::attach).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The id of the process.
    pub process: u32,
    /// Messages that have been received and not settled yet.
    pub in_flight: usize,
    /// The number of messages that may be in flight now.
    pub in_flight_limit: usize,
    /// Whether one of several listeners has hardly room for more. `None` for an instance that does not tell, which is
    /// judged by its room as a whole.
    pub is_full: Option<bool>,
    /// Messages that came to an end since the start: they were completed, or moved to the poison queue.
    pub handled: usize,
    /// Failed attempts since the start, whose messages were put back.
    pub retried: usize,
    /// The mean number of messages that are stored as one: more than 1 with
    /// [packs](queue_runtime::send::SubmitAll::packed).
    pub packed: f64,
    /// The time since the oldest message in flight was inserted, if the listener has an
    /// [objective](queue_runtime::ListenerBuilder::objective).
    pub oldest: Option<Duration>,
    /// Whether the listener's [objective](queue_runtime::ListenerBuilder::objective) is broken. `None` without an
    /// objective.
    pub is_objective_broken: Option<bool>,
    /// The processor time that the process has used. `None` where processor time cannot be measured.
    pub processor_time: Option<Duration>,
    /// Why the process [needs a restart](queue_runtime::listener::Health::needs_restart), if it does.
    pub needs_restart: Option<String>,
}

impl Instance {
    /// Creates an instance that runs, without a report.
    #[must_use]
    pub fn running(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ended: None,
            report: None,
        }
    }

    /// Creates an instance that has ended.
    #[must_use]
    pub fn ended(id: impl Into<String>, ended: Ended) -> Self {
        Self {
            ended: Some(ended),
            ..Self::running(id)
        }
    }

    /// Adds the last report of the instance.
    #[must_use]
    pub fn with_report(mut self, report: Report) -> Self {
        self.report = Some(report);
        self
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.how)
    }
}

/// Instances that another scaler starts and stops, as it was advised.
#[derive(Debug, Default)]
pub(crate) struct Advised {
    running: Vec<String>,
    started: u64,
}

#[async_trait]
impl Instances for Advised {
    async fn start(&mut self, _: &[QueueName]) -> Result<String, Failure> {
        self.started += 1;
        let id = self.started.to_string();
        self.running.push(id.clone());
        Ok(id)
    }

    async fn stop(&mut self, id: &str, _: Duration) -> Result<(), Failure> {
        self.running.retain(|one| one != id);
        Ok(())
    }

    async fn list(&mut self) -> Result<Vec<Instance>, Failure> {
        Ok(self.running.iter().map(Instance::running).collect())
    }
}

/// How long an attached process, which reports each second, may be silent before it needs a restart.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest line that is kept together, and the number of lines that wait to be passed on.
const MAX_LINE: u64 = 64 * 1024;
const MAX_WAITING: usize = 1_024;

/// Instances that are processes on this machine, of one command.
///
/// The standard input of the instances is a pipe from the agent's process. A program that calls
/// [`attach`](crate::attach) stops when the pipe ends: because the program is asked to, or because the agent was
/// killed; on Linux, what the program prints after that goes to the standard error. Programs that are not attached are
/// asked to stop by SIGTERM, on Linux and macOS, and go on when the agent is killed. What a process writes to its
/// standard output is passed on, except for its reports, which are lines of it, and loses lines if the agent's own
/// output is not read; its standard error is the agent's. An attached process that is silent for a minute is replaced.
///
/// Dropping the `Processes` closes the pipes of all instances, and does not wait.
///
/// ```
/// use std::process::Command;
/// use queue_agent::Processes;
///
/// let mut command = Command::new("order-worker");
/// command.args(["--queue", "orders"]);
/// let workers = Processes::new(command);
/// ```
#[derive(Debug)]
pub struct Processes {
    command: Command,
    running: HashMap<String, Process>,
    /// Takes the lines that are passed on; `None` before the first process.
    output: Option<SyncSender<Vec<u8>>>,
}

/// The last report of a process, and when it was read.
#[derive(Debug, Clone, Default)]
struct Latest(Arc<Mutex<Option<(Instant, Report)>>>);

impl Latest {
    fn hold(&self) -> MutexGuard<'_, Option<(Instant, Report)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    report: Latest,
    is_stopping: bool,
    /// When the process is killed, if it is stopping and has not ended before.
    kill_at: Option<Instant>,
}

impl Processes {
    /// Creates instances of this command. No process is started yet.
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
    async fn start(&mut self, queues: &[QueueName]) -> Result<String, Failure> {
        let names: Vec<_> = queues.iter().map(QueueName::as_str).collect();
        self.command.env(VARIABLE, names.join(","));
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
        let (output, latest) = (child.stdout.take(), report.clone());
        let process = child.id();
        let reading = thread("queue-agent-reports", move || {
            if let Some(output) = output {
                read(BufReader::new(output), process, &latest, &passed_on);
            }
        });
        if let Err(error) = reading {
            // The child's output would fill the pipe.
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
        // A process that reports has attached itself, and would take the signal for a second one.
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
            // Somebody else has waited for the process.
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
                let silence = format!("the instance has not reported for {:.0?}", at.elapsed());
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
        // A report may follow what was printed without a line end.
        let mark = MARK.as_bytes();
        let at = line.windows(mark.len()).position(|part| part == mark);
        if let Some(at) = at {
            match serde_json::from_slice::<Report>(&line[at + mark.len()..]) {
                // Reports of processes that an instance has started, with its environment and output, are not its own.
                // A program that writes its reports itself need not say which process it is.
                Ok(report) if report.process == process || report.process == 0 => {
                    *latest.hold() = Some((Instant::now(), report));
                }
                Ok(_) => {}
                // The report may be from another release.
                Err(error) => {
                    tracing::warn!(process, %error, "failed to read the report of an instance");
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
        // The process has ended.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::retry(error)),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn terminate(_: &Child) -> Result<(), Failure> {
    Ok(())
}
