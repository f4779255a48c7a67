use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use queue_runtime::QueueService;
use tokio::sync::watch;

use crate::instances::Report;
use crate::measure::is_full;

/// The variable in the environment of processes that an agent has started: the names of its queues, with commas between.
pub(crate) const VARIABLE: &str = "QUEUE_AGENT";

/// The variable of the agent's process.
pub(crate) const AGENT: &str = "QUEUE_AGENT_PROCESS";

/// Begins a line of the standard output that is a report.
pub(crate) const MARK: &str = "queue-agent-report ";

/// The pause between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

/// The tie of a process to the agent that has started it, from [`attach`]. Dropping the `Attached` ends the reports.
#[derive(Debug)]
#[must_use = "dropping it ends the reports"]
pub struct Attached {
    /// `None` if no agent has started this process.
    tie: Option<Tie>,
}

#[derive(Debug)]
struct Tie {
    stopped: watch::Receiver<bool>,
    /// Ends the reports when dropped.
    _reporting: Sender<()>,
}

/// Ties this process to the agent that has started it. Does nothing in a process that no agent has started.
///
/// Reports the figures of the service's listeners on the agent's queues each second, as lines of the standard output.
/// Learns from the end of the standard input that the process is to stop, because the agent wants fewer instances, or was
/// killed.
///
/// On Linux, what is printed after the agent was killed goes to the standard error instead, so that handlers that print
/// do not fail. On other systems, `println!` panics once the agent was killed.
///
/// Call `attach` once, when the listeners have started: the first report says that the instance is ready. A process
/// without a listener on one of the agent's queues is reported to do nothing there, with a warning.
///
/// ```no_run
/// use std::time::Duration;
/// use queue_runtime::{Message, QueueService, Received};
/// use queue_runtime::service::StopSignals;
/// # use serde::{Deserialize, Serialize};
/// #
/// # #[derive(Debug, Serialize, Deserialize, Message)]
/// # struct Order {
/// #     number: u32,
/// # }
/// # async fn ship(_: Received<Order>) {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = QueueService::connect("sqlite:shop.db").await?;
/// service.listener(ship).start()?;
///
/// let (attached, mut signals) = (queue_agent::attach(&service)?, StopSignals::new()?);
/// tokio::select! {
///     () = attached.stopped() => {}
///     _ = signals.next() => {}
/// }
/// service.shutdown(Duration::from_secs(20)).await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The system's error, if a thread cannot be started.
pub fn attach(service: &QueueService) -> io::Result<Attached> {
    let Some(names) = std::env::var_os(VARIABLE) else {
        return Ok(Attached { tie: None });
    };
    let names = names.into_string().unwrap_or_default();
    let listeners = service.listeners();
    for queue in names.split(',') {
        if !listeners.iter().any(|one| one.queue().as_str() == queue) {
            tracing::warn!(
                queue,
                "this process was started for a queue on which it has no listener"
            );
        }
    }
    let (stop, stopped) = watch::channel(false);
    // The runtime would wait for a read on one of its threads.
    let waiting = std::thread::Builder::new().name("queue-agent".to_owned());
    let output = output::Output::of_agent();
    let agent_is_gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&agent_is_gone);
    waiting.spawn(move || {
        // An error is an end, too.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        stop.send_replace(true);
        if let Some(output) = output {
            output.take_over(&is_gone);
        }
    })?;
    let service = service.clone();
    let (reporting, ended) = channel::<()>();
    // An agent that does not read holds up nothing but this thread.
    let reports = std::thread::Builder::new().name("queue-agent-reports".to_owned());
    reports.spawn(move || {
        loop {
            // The agent may be gone, which is told by the standard input.
            let _ = report(&service, &names);
            if agent_is_gone.load(Ordering::Relaxed) {
                return;
            }
            if ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    })?;
    let tie = Some(Tie {
        stopped,
        _reporting: reporting,
    });
    Ok(Attached { tie })
}

impl Attached {
    /// Whether an agent has started this process.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.tie.is_some()
    }

    /// Waits until the agent asks this process to stop, or is gone. Never completes in a process that no agent has
    /// started.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn stopped(&self) {
        let Some(tie) = &self.tie else {
            return std::future::pending().await;
        };
        // The sender sends `true` before it is dropped.
        let _ = tie.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

#[cfg(target_os = "linux")]
mod output {
    use std::fs::{self, File};
    use std::io::{self, BufRead as _, BufReader, Write as _};
    use std::os::unix::fs::FileTypeExt as _;
    use std::os::unix::process::parent_id;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::{AGENT, MARK};

    /// The pause between two looks whether the agent is there, while this process stops.
    const LOOK: Duration = Duration::from_millis(100);

    /// The end of the standard output that the agent reads: while this process has it too, no write fails.
    pub(super) struct Output {
        pipe: File,
        agent: u32,
    }

    impl Output {
        /// `None` if standard output is no pipe, or not an agent's.
        pub(super) fn of_agent() -> Option<Self> {
            const PATH: &str = "/proc/self/fd/1";

            let agent = std::env::var(AGENT).ok()?.parse().ok()?;
            let is_pipe = fs::metadata(PATH).ok()?.file_type().is_fifo();
            let pipe = is_pipe.then(|| File::open(PATH).ok()).flatten()?;
            Some(Self { pipe, agent })
        }

        /// Passes on what is printed once the agent is gone, which nobody else reads.
        pub(super) fn take_over(self, is_gone: &AtomicBool) {
            while parent_id() == self.agent {
                std::thread::sleep(LOOK);
            }
            is_gone.store(true, Ordering::Relaxed);
            let lines = BufReader::new(self.pipe).split(b'\n');
            for mut line in lines.map_while(Result::ok) {
                line.push(b'\n');
                if !line.starts_with(MARK.as_bytes()) {
                    // Printing must not fail, even if nobody reads this either.
                    let _ = io::stderr().write_all(&line);
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod output {
    use std::sync::atomic::AtomicBool;

    pub(super) enum Output {}

    impl Output {
        pub(super) fn of_agent() -> Option<Self> {
            None
        }

        pub(super) fn take_over(self, _: &AtomicBool) {
            match self {}
        }
    }
}

fn report(service: &QueueService, names: &str) -> io::Result<()> {
    let report = Report::of(service, names.split(','));
    let json = serde_json::to_string(&report).expect("numbers and texts are JSON");
    let mut out = io::stdout().lock();
    // The report is one write, so that nothing gets between.
    out.write_all(format!("{MARK}{json}\n").as_bytes())?;
    out.flush()
}

impl Report {
    /// Sums up the listeners of a service on these queues.
    ///
    /// Makes the report for an implementation of [`Instances`](crate::Instances) whose instances report in another way
    /// than by [`attach`].
    #[must_use]
    pub fn of<'q>(service: &QueueService, queues: impl IntoIterator<Item = &'q str>) -> Self {
        let queues: Vec<_> = queues.into_iter().collect();
        let health = service.health();
        let needs_restart = health.needs_restart().then(|| health.to_string());
        let mut report = Self {
            process: std::process::id(),
            processor_time: processor_time(),
            needs_restart,
            ..Self::default()
        };
        let listeners = service.listeners().into_iter();
        for listener in listeners.filter(|one| queues.contains(&one.queue().as_str())) {
            let info = listener.info();
            report.in_flight += info.in_flight;
            report.in_flight_limit += info.in_flight_limit;
            let is_full = is_full(info.in_flight, info.in_flight_limit);
            report.is_full = Some(is_full || report.is_full.unwrap_or(false));
            report.retried += info.retried;
            report.handled += info.completed + info.duplicates + info.poisoned;
            report.packed = report.packed.max(listener.messages_per_pack());
            if let Some(objective) = info.objective {
                report.oldest = report.oldest.max(objective.oldest);
                let is_broken = report.is_objective_broken.unwrap_or(false) || objective.is_broken;
                report.is_objective_broken = Some(is_broken);
            }
        }
        report
    }
}

/// Returns the processor time of this process.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Some(Duration::new(seconds.ok()?, nanos.ok()?))
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn processor_time() -> Option<Duration> {
    None
}
