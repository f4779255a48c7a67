//! A burst of messages on an idle queue: how the listener scales up, drains it, and scales down again.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_instructions::Parcel;
use queue_runtime::policy::DepthRules;
use queue_runtime::{ListenerHandle, QueueService, Received};
use tokio::sync::Notify;

use crate::report::{Curve, Table};
use crate::sqlite::Synchronous;
use crate::{Options, Outcome, ours, runtime};

const MESSAGES: u32 = 100_000;

const LARGE: Listener = Listener {
    tasks: 16,
    batch: 256,
    in_flight: 512,
    handler: Duration::from_millis(10),
    scales_handlers: false,
};

/// As many messages in flight as there can be tasks, each received by itself. A task receives the next message while
/// handlers run, so that even one task can have all in flight.
const SINGLY: Listener = Listener {
    tasks: 100,
    batch: 1,
    in_flight: 100,
    handler: Duration::from_millis(20),
    scales_handlers: false,
};

/// One task, and as many messages in flight as the depth of the queue says.
const BY_HANDLERS: Listener = Listener {
    tasks: 1,
    batch: 256,
    scales_handlers: true,
    ..SINGLY
};

/// Bursts on each side of the depths at which the default scale policy has 10, 50 and 100 tasks, or handlers.
const STEPS: [u32; 3] = [50, 500, 5_000];

/// The pause between two samples.
const EVERY: Duration = Duration::from_millis(50);

/// When a burst that is not over has failed.
const PATIENCE: Duration = Duration::from_secs(600);

/// The listener that a burst meets.
#[derive(Clone, Copy)]
struct Listener {
    /// The maximum number of dequeue tasks; the minimum is one.
    tasks: usize,
    batch: usize,
    in_flight: usize,
    /// What each handler waits for.
    handler: Duration,
    /// Whether the scale policy says how many handlers run, and not how many tasks.
    scales_handlers: bool,
}

/// The moments of a burst, from its start.
struct Course {
    /// The maximum number of dequeue tasks.
    most_tasks: usize,
    /// The maximum number of messages in flight.
    most_in_flight: usize,
    all_tasks: Option<Duration>,
    drained: Duration,
    one_task: Duration,
    depth: Vec<(f64, f64)>,
    tasks: Vec<(f64, f64)>,
}

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    Ok(vec![measure_large(options)?, measure_steps(options)?])
}

/// Measures a listener of one to sixteen tasks, on a SQLite file. The curves are those of the last round.
fn measure_large(options: &Options) -> Outcome<Table> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let messages = options.messages(MESSAGES, 1);
    let title = format!("A burst on an idle queue, SQLite, {LARGE}");
    let mut table = Table::new("burst", title, &["ours"])
        .costs("seconds from the start of the burst", 2)
        .by("messages");
    for round in options.rounds() {
        eprintln!("burst, round {round}: {messages} messages");
        let path = dir.path().join(format!("{round}.db"));
        let course = runtime.block_on(burst(&path, LARGE, messages, 1000))?;
        let all_tasks = course.all_tasks.map_or(f64::NAN, |at| at.as_secs_f64());
        for (what, at) in [
            ("all tasks run", all_tasks),
            ("the queue is empty", course.drained.as_secs_f64()),
            ("one task is left", course.one_task.as_secs_f64()),
        ] {
            table.add(what, messages, "ours", at);
        }
        table.curves = vec![
            Curve::new("messages on the queue", course.depth),
            Curve::new("dequeue tasks", course.tasks),
        ];
    }
    Ok(table)
}

/// Measures up to how many tasks, or handlers, a listener scales at each step of the default policy.
fn measure_steps(options: &Options) -> Outcome<Table> {
    let runtime = runtime()?;
    let title = format!("Bursts at the steps of the default scale policy, SQLite, {SINGLY}");
    let mut table = Table::new("burst-steps", title, &["ours"])
        .costs("each in its unit", 2)
        .by("messages");
    for round in options.rounds() {
        let dir = options.scratch()?;
        for messages in STEPS {
            eprintln!("steps, round {round}: {messages} messages");
            // As few calls as possible, so that the depth is that of the burst.
            let course = |of, file: &str| {
                let path = dir.path().join(format!("{file}-{messages}.db"));
                runtime.block_on(burst(&path, of, messages, messages))
            };
            let by_tasks = course(SINGLY, "tasks")?;
            let by_handlers = course(BY_HANDLERS, "handlers")?;
            for (what, figure) in [
                ("dequeue tasks at most", by_tasks.most_tasks as f64),
                (
                    "seconds until the queue is empty",
                    by_tasks.drained.as_secs_f64(),
                ),
                (
                    "`of_handlers`: handlers at most",
                    by_handlers.most_in_flight as f64,
                ),
                (
                    "`of_handlers`: seconds until the queue is empty",
                    by_handlers.drained.as_secs_f64(),
                ),
            ] {
                table.add(what, messages, "ours", figure);
            }
        }
    }
    Ok(table)
}

/// Submits messages, so many in a call, to the idle queue of a listener.
async fn burst(path: &Path, of: Listener, messages: u32, together: u32) -> Outcome<Course> {
    let service = QueueService::connect(&Synchronous::Full.url(path)).await?;
    let mut rules = DepthRules::default();
    if of.scales_handlers {
        rules = rules.of_handlers();
    }
    let listener = service
        .listener(move |_: Received<Parcel>| tokio::time::sleep(of.handler))
        .scale(rules)
        .tasks(1..=of.tasks)
        .batch(of.batch)
        .max_in_flight(of.in_flight)
        .create_queue()
        .start()?;
    // Until polls are at the longest pauses.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let started = Instant::now();
    let submitted = Arc::new(Notify::new());
    let submitting = {
        let (service, submitted) = (service.clone(), Arc::clone(&submitted));
        tokio::spawn(async move {
            ours::submit_all(&service, messages, together).await?;
            submitted.notify_one();
            Outcome::Ok(())
        })
    };
    let watched = watch(&listener, of.tasks, &submitted, started);
    let watched = tokio::time::timeout(PATIENCE, watched).await;
    let course = watched.map_err(|_| format!("the burst is not over after {PATIENCE:?}"))??;
    submitting.await??;
    let report = listener.shutdown(Duration::from_secs(60)).await;
    if report.info.completed == messages as usize {
        Ok(course)
    } else {
        Err(format!("not all messages were handled: {report:?}").into())
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tasks,
            batch,
            in_flight,
            handler,
            ..
        } = self;
        write!(
            f,
            "tasks(1..={tasks}), batch({batch}), {in_flight} in flight, handlers that wait {handler:?}"
        )
    }
}

/// Samples the listener until it is idle again.
async fn watch(
    listener: &ListenerHandle,
    most: usize,
    submitted: &Notify,
    started: Instant,
) -> Outcome<Course> {
    let (mut depth, mut tasks) = (Vec::new(), Vec::new());
    let (mut all_tasks, mut drained, mut all_submitted) = (None, None, false);
    let mut samples = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            biased;
            () = submitted.notified() => {
                all_submitted = true;
                continue;
            }
            _ = samples.tick() => {}
        }
        let messages = listener.depth().await?;
        let (now, running) = (started.elapsed(), listener.info().tasks);
        depth.push((now.as_secs_f64(), messages as f64));
        tasks.push((now.as_secs_f64(), running as f64));
        if running == most {
            all_tasks.get_or_insert(now);
        }
        if all_submitted && messages == 0 {
            let drained = *drained.get_or_insert(now);
            if running == 1 {
                return Ok(Course {
                    most_tasks: listener.info().peak_tasks,
                    most_in_flight: listener.info().peak_in_flight,
                    all_tasks,
                    drained,
                    one_task: now,
                    depth,
                    tasks,
                });
            }
        }
    }
}
