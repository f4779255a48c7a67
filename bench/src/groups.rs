//! Messages of groups, and messages that are tracked, on SQLite and PostgreSQL, beside messages without; and how soon a
//! message of another group is handled while one group has half a million.

use std::time::Instant;

use queue_runtime::{Message, Queue, QueueService, Received};
use queue_tests::postgres::PostgresServer;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::unbounded_channel;

use crate::report::{Table, in_turn};
use crate::sqlite::Synchronous;
use crate::tasks::{all_of, rate, side_by_side};
use crate::{Options, Outcome, ours, runtime};

const NONE: &str = "without groups";
const MANY: &str = "10,000 groups";
const FEW: &str = "100 groups";
const TURNS: &str = "100 groups, four at once";
const LOOPS: &str = "100 queues, a loop for each";
const TRACKED: &str = "tracked, without groups";
const HISTORY: &str = "tracked, with a history of 10,000";
const SIDES: [&str; 7] = [NONE, MANY, FEW, TURNS, LOOPS, TRACKED, HISTORY];

const MESSAGES: u32 = 100_000;
const BATCH: u32 = 500;
const LANES: u32 = 100;
const IN_FLIGHT: usize = 64;

/// The messages of one group that wait while those of other groups are measured.
const BACKLOG: u32 = 500_000;
const PROBES: u32 = 100;

#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.entry", queue = "entries")]
enum Entry {
    Alone {
        number: u32,
    },
    Of {
        #[message(group)]
        group: u32,
        number: u32,
    },
}

/// A message that the storage finds by its id.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(kind = "bench.tracked-entry", queue = "entries", tracked)]
struct TrackedEntry {
    number: u32,
}

/// The same with an entry for each that ends, most of which are deleted again.
#[derive(Debug, Clone, Serialize, Deserialize, Message)]
#[message(
    kind = "bench.kept-entry",
    queue = "entries",
    tracked,
    history = 10_000
)]
struct KeptEntry {
    number: u32,
}

pub(crate) fn measure(options: &Options) -> Outcome<Vec<Table>> {
    let dir = options.scratch()?;
    let runtime = runtime()?;
    let title = "Messages of groups, SQLite with synchronous=FULL, and PostgreSQL";
    let mut table = Table::new("groups", title, &SIDES).by("messages");
    let postgres = PostgresServer::start();
    if let Err(why) = &postgres {
        table.note(format!("PostgreSQL: {why}"));
    }
    let messages = options.messages(MESSAGES, BATCH);
    for round in options.rounds() {
        for side in in_turn(round, SIDES) {
            eprintln!("groups, round {round}: {side}");
            let name = side.replace([' ', ','], "_");
            let path = dir.path().join(format!("{round}-{name}"));
            let mut places = vec![("SQLite", Synchronous::Full.url(&path))];
            if let Ok(server) = &postgres {
                let url = format!("{}?schema=groups_{round}_{name}", server.url());
                places.push(("PostgreSQL", url));
            }
            for (place, url) in places {
                let rates = runtime.block_on(rates(&url, messages, side))?;
                for (what, rate) in ["submit_all", "listener"].into_iter().zip(rates) {
                    table.add(&format!("{place}, {what}"), messages, side, rate);
                }
            }
        }
    }
    let path = dir.path().join("backlog");
    let backlog = options.messages(BACKLOG, BATCH);
    let picked_up = runtime.block_on(pick_up(&Synchronous::Full.url(&path), backlog))?;
    Ok(vec![table, picked_up])
}

fn entry(side: &str, number: u32) -> Entry {
    match side {
        NONE => Entry::Alone { number },
        MANY => Entry::Of {
            group: number % 10_000,
            number,
        },
        _ => Entry::Of {
            group: number % LANES,
            number,
        },
    }
}

/// Returns how many messages are submitted, and then handled, in a second.
async fn rates(url: &str, messages: u32, side: &str) -> Outcome<[f64; 2]> {
    let service = QueueService::connect(url).await?;
    if side == TURNS {
        let queue = service.queue::<Entry>().any();
        queue.create().await?;
        queue.set_group_limit("4".parse()?).await?;
    }
    if side == LOOPS {
        return rates_of_loops(&service, messages).await;
    }
    if side == TRACKED {
        return rates_of(&service, messages, |number| TrackedEntry { number }).await;
    }
    if side == HISTORY {
        return rates_of(&service, messages, |number| KeptEntry { number }).await;
    }
    rates_of(&service, messages, |number| entry(side, number)).await
}

async fn rates_of<M: Message + Sync>(
    service: &QueueService,
    messages: u32,
    make: impl Fn(u32) -> M + Copy,
) -> Outcome<[f64; 2]> {
    let started = Instant::now();
    submit(service, 0..messages, make).await?;
    let submitted = f64::from(messages) / started.elapsed().as_secs_f64();
    let handled = ours::handle_all(messages, |handled| {
        let handler = move |_: Received<M>| {
            handled();
            std::future::ready(())
        };
        service.listener(handler).max_in_flight(IN_FLIGHT).start()
    });
    Ok([submitted, handled.await?])
}

/// What keeps the order of each group without groups: a queue for each, and a loop that handles one message after the other.
async fn rates_of_loops(service: &QueueService, messages: u32) -> Outcome<[f64; 2]> {
    let queues =
        (0..LANES).map(|lane| service.queue_named::<Entry>(format!("entries-{lane}").as_str()));
    let queues: Vec<Queue<Entry>> = queues.collect::<Result<_, _>>()?;
    let started = Instant::now();
    for first in (0..messages).step_by((LANES * BATCH) as usize) {
        for queue in &queues {
            let numbers = first..messages.min(first + LANES * BATCH);
            let numbers = numbers.step_by(LANES as usize);
            queue
                .submit_all(numbers.map(|number| Entry::Alone { number }))
                .await?;
        }
    }
    let submitted = rate(messages, started);
    let started = Instant::now();
    let mut queues = queues.into_iter();
    let taken = side_by_side(LANES, |_| {
        let queue = queues.next().expect("one for each");
        async move {
            let mut taken = 0;
            while let Some(delivery) = queue.accept().await? {
                delivery.complete().await?;
                taken += 1;
            }
            Ok(taken)
        }
    });
    Ok([submitted, all_of(messages, taken.await?, started)?])
}

async fn submit<M: Message + Sync>(
    service: &QueueService,
    numbers: std::ops::Range<u32>,
    make: impl Fn(u32) -> M + Copy,
) -> Outcome<()> {
    for first in numbers.clone().step_by(BATCH as usize) {
        let batch = first..numbers.end.min(first + BATCH);
        service.submit_all(batch.map(make)).await?;
    }
    Ok(())
}

/// Measures how soon a message of a new group is handled, while a listener works on the backlog of another.
async fn pick_up(url: &str, backlog: u32) -> Outcome<Table> {
    const SIDE: &str = "from the call of `submit`";
    let title = "From submit to the handler, while another group has a backlog, SQLite with synchronous=FULL";
    let mut table = Table::new("groups-pickup", title, &[SIDE])
        .costs("milliseconds", 2)
        .by("percentile");
    let service = QueueService::connect(url).await?;
    submit(&service, 0..backlog, |number| Entry::Of {
        group: 0,
        number,
    })
    .await?;
    let (sender, mut handled) = unbounded_channel();
    let handler = move |entry: Received<Entry>| {
        if let Entry::Of { group: 1.., number } = *entry {
            sender.send((number, Instant::now())).ok();
        }
        std::future::ready(())
    };
    let listener = service.listener(handler).max_in_flight(IN_FLIGHT).start()?;
    let _listener = listener.stop_on_drop();
    let mut took = Vec::new();
    for number in 0..PROBES {
        let begun = Instant::now();
        service
            .submit(Entry::Of {
                group: 1 + number,
                number,
            })
            .await?;
        loop {
            let (of, at) = handled.recv().await.ok_or("the listener has ended")?;
            if of == number {
                took.push(at.duration_since(begun));
                break;
            }
        }
    }
    took.sort();
    for percentile in [50_u32, 99] {
        let at = (took.len() * percentile as usize / 100).min(took.len() - 1);
        table.add(
            &format!("{backlog} messages"),
            percentile,
            SIDE,
            took[at].as_secs_f64() * 1e3,
        );
    }
    Ok(table)
}
