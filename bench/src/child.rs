//! Work that this program does in a child process.
//!
//! The child opens its service, prints a line, waits for a line on its input, works, and prints the result. So
//! the parent starts several children together and measures by its own clock.

use std::io::{BufRead, stdin};
use std::process::Stdio;
use std::time::Duration;

use queue_runtime::QueueService;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{Outcome, idle, memory, ours, runtime};

/// The option of this program that takes a [`Job`] as JSON.
const OPTION: &str = "--child";
/// When a child that has not answered is killed.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) work: Work,
    pub(crate) messages: u32,
    pub(crate) tasks: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Submits the messages; returns their number.
    Submit,
    /// Accepts and completes until the queue is empty. Returns how many messages.
    Consume,
    /// Handles the messages in a listener, while they are submitted; returns their number.
    Listen,
    /// Submits and, at the same time, listens. Returns the number of messages.
    SubmitAndListen,
    /// Submits the messages in bulk; returns by how many bytes the process has grown for each.
    Grow,
    /// Runs as many idle listeners as there are tasks, each of at least so many tasks of its own. Returns percent of a
    /// core, threads, and MiB of memory.
    Idle { seconds: u32, least: usize },
}

impl std::str::FromStr for Job {
    type Err = serde_json::Error;

    fn from_str(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }
}

/// Does the work in this process, which is the child.
pub(crate) fn perform(job: &Job) -> Outcome<()> {
    runtime()?.block_on(async {
        let service = QueueService::connect(&job.url).await?;
        println!("ready");
        stdin().lock().read_line(&mut String::new())?;
        let result = result(&service, job).await?;
        println!("{}", serde_json::to_string(&result)?);
        Ok(())
    })
}

async fn result(service: &QueueService, job: &Job) -> Outcome<Vec<f64>> {
    let (messages, tasks) = (job.messages, job.tasks);
    let result = match job.work {
        Work::Submit => {
            ours::submit(service, messages, tasks).await?;
            f64::from(messages)
        }
        Work::Consume => f64::from(ours::accept_most(service, u32::MAX, tasks).await?),
        Work::Listen => {
            ours::listen(service, messages, tasks).await?;
            f64::from(messages)
        }
        Work::SubmitAndListen => {
            let submit = ours::submit(service, messages, tasks);
            tokio::try_join!(submit, ours::listen(service, messages, tasks))?;
            f64::from(messages)
        }
        Work::Grow => {
            // What the first messages need once is not counted.
            let batch = 1000;
            ours::submit_all(service, messages / 10, batch).await?;
            let before = memory::resident();
            ours::submit_all(service, messages, batch).await?;
            let grown = memory::resident().zip(before).map(|(now, then)| now - then);
            grown.map_or(f64::NAN, |bytes| bytes / f64::from(messages))
        }
        Work::Idle { seconds, least } => {
            let span = Duration::from_secs(seconds.into());
            return Ok(idle::wait(service, tasks, least, span).await?.into());
        }
    };
    Ok(vec![result])
}

/// A child that is ready to work.
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a child, killed when the `Worker` is dropped.
    pub(crate) async fn start(job: &Job) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([OPTION, &serde_json::to_string(job)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or("the child has no pipes")?;
        let output = BufReader::new(output).lines();
        let mut worker = Self {
            child,
            input,
            output,
        };
        worker.line().await?;
        Ok(worker)
    }

    /// Lets the child work, and returns its result, the first if it has several.
    pub(crate) async fn work(self) -> Outcome<f64> {
        let results = self.results().await?;
        Ok(*results.first().ok_or("the child has no result")?)
    }

    /// Lets the child work; returns its results, of which unknown ones are no numbers.
    pub(crate) async fn results(mut self) -> Outcome<Vec<f64>> {
        self.input.write_all(b"\n").await?;
        let results: Vec<Option<f64>> = serde_json::from_str(&self.line().await?)?;
        let results = results.into_iter().map(|known| known.unwrap_or(f64::NAN));
        let results = results.collect();
        let status = self.child.wait().await?;
        if status.success() {
            Ok(results)
        } else {
            Err(format!("a child ended with {status}").into())
        }
    }

    async fn line(&mut self) -> Outcome<String> {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let line = line.map_err(|_| format!("a child did not answer within {PATIENCE:?}"))??;
        Ok(line.ok_or("a child ended without an answer")?)
    }
}
