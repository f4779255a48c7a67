//! SQLite: ours, and bare programs that make the same commits.

use std::sync::Arc;

use queue_instructions::Parcel;
use queue_runtime::QueueService;
use queue_runtime::backend::{Backend, MemoryBackend};
use queue_runtime::clock::SystemClock;

use crate::raw::{self, Bare};
use crate::report::{Figures, Table, in_turn};
use crate::{Options, Outcome, ours, runtime, writer};

/// The numbers of tasks and of messages: fewer if every message is a commit.
const SIZES: [(u32, u32); 3] = [(1, 10_000), (32, 50_000), (256, 100_000)];
/// The numbers of messages in one call of `submit_all`, and in all.
const BULK: [(u32, u32); 4] = [(1, 2000), (10, 20_000), (100, 100_000), (1000, 200_000)];

const OURS: &str = "ours";
const WRITER: &str = "bare writer thread, same bytes";
const SAME_BYTES: &str = "bare loop, same bytes";
const BARE: &str = "bare loop";

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Synchronous {
    Full,
    Normal,
}

impl Synchronous {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Normal => "normal",
        }
    }

    pub(crate) fn url(self, path: &std::path::Path) -> String {
        format!("sqlite:{}?synchronous={}", path.display(), self.name())
    }
}

pub(crate) fn measure(options: &Options, synchronous: Synchronous) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let setting = synchronous.name();
    let mut table = Table::new(
        &format!("sqlite-{setting}"),
        format!("SQLite, WAL, synchronous={}", setting.to_uppercase()),
        &[OURS, WRITER, SAME_BYTES, BARE],
    );
    let bare = Bare {
        synchronous: setting,
        at_least: 0,
    };
    let same_bytes = Bare {
        at_least: runtime.block_on(stored_size())?,
        ..bare
    };
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            eprintln!("SQLite, {setting}, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for (number, side) in in_turn(round, [OURS, WRITER, SAME_BYTES, BARE])
                .into_iter()
                .enumerate()
            {
                let path = dir.path().join(format!("{round}-{tasks}-{number}.db"));
                let (submit, accept, listen) = match side {
                    OURS => {
                        let url = synchronous.url(&path);
                        runtime.block_on(ours_on(&url, messages, tasks))?
                    }
                    WRITER => {
                        let run = writer::run(&path, same_bytes, messages, tasks);
                        without_listener(runtime.block_on(run)?)
                    }
                    SAME_BYTES => without_listener(raw::run(&path, same_bytes, messages, tasks)?),
                    _ => without_listener(raw::run(&path, bare, messages, tasks)?),
                };
                table.add_all(tasks, side, &Figures::rates(submit, accept, listen));
            }
        }
    }
    Ok(vec![table])
}

pub(crate) async fn ours_on(
    url: &str,
    messages: u32,
    tasks: u32,
) -> Outcome<(f64, f64, Option<f64>)> {
    let service = QueueService::connect(url).await?;
    let submit = ours::submit(&service, messages, tasks).await?;
    let accept = ours::accept(&service, messages, tasks).await?;
    ours::submit(&service, messages, 256).await?;
    let listen = ours::listen(&service, messages, tasks).await?;
    Ok((submit, accept, Some(listen)))
}

/// A bare program's consuming is compared with a listener, too.
pub(crate) fn without_listener((insert, consume): (f64, f64)) -> (f64, f64, Option<f64>) {
    (insert, consume, Some(consume))
}

/// Measures `submit_all`, and inserts of as many messages per commit.
pub(crate) fn measure_bulk(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "submit_all on SQLite, WAL, synchronous=FULL";
    let mut table = Table::new("bulk", title, &[OURS, SAME_BYTES]).by("messages a call");
    let bare = runtime.block_on(Bare::stored_as_ours())?;
    for round in options.rounds() {
        for (batch, messages) in BULK {
            eprintln!("bulk, round {round}: {batch} messages a call");
            let messages = options.messages(messages, batch);
            for side in in_turn(round, [OURS, SAME_BYTES]) {
                let path = |name: &str| dir.path().join(format!("{name}-{round}-{batch}.db"));
                let rate = if side == OURS {
                    let url = Synchronous::Full.url(&path("ours"));
                    runtime.block_on(async {
                        let service = QueueService::connect(&url).await?;
                        ours::submit_all(&service, messages, batch).await
                    })?
                } else {
                    let mut connection = bare.open(&path("bare"))?;
                    raw::insert(&mut connection, bare, messages, batch)?
                };
                table.add("submit_all", batch, side, rate);
            }
        }
    }
    Ok(vec![table])
}

impl Bare {
    /// Bodies as large as ours, each commit on the disk.
    pub(crate) async fn stored_as_ours() -> Outcome<Self> {
        Ok(Self {
            synchronous: Synchronous::Full.name(),
            at_least: stored_size().await?,
        })
    }
}

/// The size of a message's stored body, with its envelope.
pub(crate) async fn stored_size() -> Outcome<usize> {
    let backend = Arc::new(MemoryBackend::new(Arc::new(SystemClock::new())));
    let service = QueueService::with_backend(Arc::clone(&backend) as Arc<dyn Backend>);
    let service = service.connect().await?;
    service.submit(Parcel::new(10_000)).await?;
    let queue = service.queue::<Parcel>();
    let peeked = backend.peek(queue.any().name(), 1).await?;
    let message = peeked.first().ok_or("the message was not stored")?;
    Ok(message.body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stored_body_is_larger_than_its_payload() {
        let payload = serde_json::to_vec(&Parcel::new(10_000))
            .expect("JSON")
            .len();
        let stored = stored_size().await.expect("a size");
        assert!(stored > payload, "{stored} bytes with {payload} of payload");
    }
}
