//! A burst of messages on an idle queue: how the listener scales up, drains it, and scales down again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use queue_runtime::{ListenerHandle, QueueService, Received};
use tokio::sync::Notify;

use crate::report::{Curve, Table};
use crate::sqlite::Synchronous;
use crate::workload::Parcel;
use crate::{Options, Outcome, ours, runtime};

const MESSAGES: u32 = 100_000;
const TASKS: usize = 16;
const IN_FLIGHT: usize = 512;

/// What each handler waits for.
const HANDLER: Duration = Duration::from_millis(10);

/// The pause between two samples.
const EVERY: Duration = Duration::from_millis(50);

/// When a burst that is not over has failed.
const PATIENCE: Duration = Duration::from_secs(600);

/// The moments of a burst, from its start.
struct Course {
    all_tasks: Option<Duration>,
    drained: Duration,
    one_task: Duration,
    depth: Vec<(f64, f64)>,
    tasks: Vec<(f64, f64)>,
}

/// Measures a listener of one to sixteen tasks, on a SQLite file. The curves are those of the last round.
pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let messages = options.messages(MESSAGES, 1);
    let title = format!(
        "A burst on an idle queue, SQLite, tasks(1..={TASKS}), {IN_FLIGHT} in flight, handlers that wait {HANDLER:?}"
    );
    let mut table = Table::new("burst", title, &["ours"])
        .costs("seconds from the start of the burst", 2)
        .by("messages");
    for round in options.rounds() {
        eprintln!("burst, round {round}: {messages} messages");
        let path = dir.path().join(format!("{round}.db"));
        let course = runtime.block_on(burst(&Synchronous::Full.url(&path), messages))?;
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
    Ok(vec![table])
}

async fn burst(url: &str, messages: u32) -> Outcome<Course> {
    let service = QueueService::connect(url).await?;
    let listener = service
        .listener(async |_: Received<Parcel>| tokio::time::sleep(HANDLER).await)
        .tasks(1..=TASKS)
        .max_in_flight(IN_FLIGHT)
        .create_queue()
        .start()?;
    // Until it polls at the longest pauses.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let started = Instant::now();
    let submitted = Arc::new(Notify::new());
    let submitting = {
        let (service, submitted) = (service.clone(), Arc::clone(&submitted));
        tokio::spawn(async move {
            ours::submit_all(&service, messages, 1000).await?;
            submitted.notify_one();
            Outcome::Ok(())
        })
    };
    let watched = watch(&listener, &submitted, started);
    let watched = tokio::time::timeout(PATIENCE, watched).await;
    let course = watched.map_err(|_| format!("the burst is not over after {PATIENCE:?}"))??;
    submitting.await??;
    let report = listener.shutdown(Duration::from_secs(60)).await;
    if report.info.completed == u64::from(messages) {
        Ok(course)
    } else {
        Err(format!("not all messages were handled: {report:?}").into())
    }
}

/// Samples the listener until it is idle again.
async fn watch(listener: &ListenerHandle, submitted: &Notify, started: Instant) -> Outcome<Course> {
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
        if running == TASKS {
            all_tasks.get_or_insert(now);
        }
        if all_submitted && messages == 0 {
            let drained = *drained.get_or_insert(now);
            if running == 1 {
                return Ok(Course {
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
