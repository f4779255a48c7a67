//! SQLite: ours and a bare `rusqlite` loop that makes the same commits.

use queue_runtime::QueueService;

use crate::report::{Figures, Table, Whose};
use crate::{Options, Outcome, ours, raw, runtime};

/// The numbers of tasks and of messages: fewer if every message is a commit.
const SIZES: [(u32, u32); 3] = [(1, 10_000), (32, 50_000), (256, 100_000)];

pub(crate) fn measure(options: &Options) -> Outcome<()> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = format!(
        "SQLite {}, WAL, synchronous=FULL: messages per second",
        rusqlite::version()
    );
    let mut table = Table::new(title, ["ours", "bare rusqlite loop"], 0);
    for round in options.rounds() {
        for (tasks, messages) in SIZES {
            eprintln!("SQLite, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            let path = |name: &str| dir.path().join(format!("{name}-{round}-{tasks}.db"));
            let (insert, consume) = raw::run(&path("raw"), messages, tasks)?;
            let bare = Figures::rates(insert, consume, consume);
            table.add_all(tasks, Whose::Bare, &bare);
            let rates = runtime.block_on(async {
                let url = format!("sqlite:{}", path("ours").display());
                let service = QueueService::connect(&url).await?;
                let submit = ours::submit(&service, messages, tasks).await?;
                let accept = ours::accept(&service, messages, tasks).await?;
                ours::submit(&service, messages, 256).await?;
                let listen = ours::listen(&service, messages, tasks).await?;
                Outcome::Ok(Figures::rates(submit, accept, listen))
            })?;
            table.add_all(tasks, Whose::Ours, &rates);
        }
    }
    println!("{table}");
    Ok(())
}
