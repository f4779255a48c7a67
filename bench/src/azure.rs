//! Azure's queues: ours against the bare SDK. It knows no account keys, so both carry the same shared
//! access signature.

use queue_runtime::QueueService;
use queue_tests::azurite::Azurite;

use crate::loopback::Loopback;
use crate::report::{Figures, Table, Whose};
use crate::{Options, Outcome, ours, runtime, sdk};

pub(crate) const ACCOUNT: &str = "bench";

const BARE: &str = "bare SDK";

/// How many tasks, and how many messages.
const ON_LOOPBACK: [(u32, u32); 3] = [(1, 10_000), (32, 40_000), (256, 40_000)];
const ON_AZURITE: [(u32, u32); 2] = [(1, 400), (32, 640)];

pub(crate) fn measure_on_loopback(options: &Options) -> Outcome<()> {
    let server = Loopback::start()?;
    let title = "A loopback server that does nothing";
    let mut rates = Table::new(format!("{title}: messages per second"), BARE, 0);
    let mut requests = Table::new(format!("{title}: requests per message"), BARE, 3);
    for round in options.rounds() {
        for (tasks, messages) in ON_LOOPBACK {
            eprintln!("loopback, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for whose in in_turn(round) {
                let run = Run::of(whose, &server.url(), messages, tasks, &|| server.requests())?;
                rates.add_all(tasks, whose, &run.rates);
                requests.add_all(tasks, whose, &run.requests);
            }
        }
    }
    println!("{rates}{requests}");
    Ok(())
}

pub(crate) fn measure_on_azurite(options: &Options, server: &Azurite) -> Outcome<()> {
    let url = server.signed_url(ACCOUNT);
    let title = "Azurite, kept in memory: messages per second".to_owned();
    let mut rates = Table::new(title, BARE, 0);
    for round in options.rounds() {
        for (tasks, messages) in ON_AZURITE {
            eprintln!("Azurite, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for whose in in_turn(round) {
                let run = Run::of(whose, &url, messages, tasks, &|| 0)?;
                rates.add_all(tasks, whose, &run.rates);
            }
        }
    }
    println!("{rates}");
    Ok(())
}

/// Each goes first every other time.
fn in_turn(round: u32) -> [Whose; 2] {
    match round % 2 {
        0 => [Whose::Ours, Whose::Bare],
        _ => [Whose::Bare, Whose::Ours],
    }
}

/// Messages per second, and requests per message.
struct Run {
    rates: Figures,
    requests: Figures,
}

enum Side {
    Ours(QueueService),
    Bare(sdk::Queue),
}

impl Run {
    /// On a runtime of its own, so that no side finds the connections of the other.
    fn of(
        whose: Whose,
        url: &str,
        messages: u32,
        tasks: u32,
        requests: &dyn Fn() -> u64,
    ) -> Outcome<Self> {
        runtime()?.block_on(async {
            let side = match whose {
                Whose::Ours => Side::Ours(QueueService::connect(url).await?),
                Whose::Bare => Side::Bare(sdk::Queue::open(url).await?),
            };
            let mut seen = vec![requests()];
            let submit = side.submit(messages, tasks).await?;
            seen.push(requests());
            let accept = side.accept(messages, tasks).await?;
            seen.push(requests());
            side.submit(messages, 256).await?;
            let before = requests();
            let listen = side.listen(messages, tasks).await?;
            let each = |requests: u64| requests as f64 / f64::from(messages);
            Ok(Self {
                rates: Figures::rates(submit, accept, listen),
                requests: Figures::requests(
                    each(seen[1] - seen[0]),
                    each(seen[2] - seen[1]),
                    each(requests() - before),
                ),
            })
        })
    }
}

impl Side {
    async fn submit(&self, messages: u32, tasks: u32) -> Outcome<f64> {
        match self {
            Self::Ours(service) => ours::submit(service, messages, tasks).await,
            Self::Bare(queue) => sdk::submit(queue, messages, tasks).await,
        }
    }

    async fn accept(&self, messages: u32, tasks: u32) -> Outcome<f64> {
        match self {
            Self::Ours(service) => ours::accept(service, messages, tasks).await,
            Self::Bare(queue) => sdk::accept(queue, messages, tasks).await,
        }
    }

    async fn listen(&self, messages: u32, tasks: u32) -> Outcome<f64> {
        match self {
            Self::Ours(service) => ours::listen(service, messages, tasks).await,
            Self::Bare(queue) => sdk::listen(queue, messages, tasks).await,
        }
    }
}
