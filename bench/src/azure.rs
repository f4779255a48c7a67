//! Azure's queues: ours and the bare SDK, both with the same shared access signature, since the SDK does not support
//! account keys.

use queue_runtime::QueueService;
use queue_tests::azurite::Azurite;

use crate::loopback::{ACCOUNT, Loopback};
use crate::meter::{Meter, Served};
use crate::report::{Figures, Table, Whose};
use crate::{Options, Outcome, ours, runtime, sdk};

const SIDES: [&str; 2] = ["ours", "bare SDK"];
const PROCESSOR_TIME: &str = "microseconds of the client's processor time per message";

/// The numbers of tasks and of messages.
const ON_LOOPBACK: [(u32, u32); 3] = [(1, 10_000), (32, 40_000), (256, 40_000)];
const ON_AZURITE: [(u32, u32); 2] = [(1, 400), (32, 640)];

pub(crate) fn measure_on_loopback(options: &Options) -> Outcome<Vec<Table>> {
    let server = Loopback::start()?;
    let title = "A minimal loopback server";
    let mut rates = Table::new("http", title, &SIDES);
    let mut times = Table::new("http-processor", title, &SIDES).costs(PROCESSOR_TIME, 1);
    let mut requests = Table::new("http-requests", title, &SIDES).costs("requests per message", 3);
    for round in options.rounds() {
        for (tasks, messages) in ON_LOOPBACK {
            eprintln!("loopback, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for whose in Whose::in_turn(round) {
                let run = Run::of(whose, &server.url(), messages, tasks, &|| server.served())?;
                let side = side(whose);
                rates.add_all(tasks, side, &run.rates);
                times.add_all(tasks, side, &run.times);
                requests.add_all(tasks, side, &run.requests);
            }
        }
    }
    Ok(vec![rates, times, requests])
}

pub(crate) fn measure_on_azurite(options: &Options) -> Outcome<Vec<Table>> {
    let title = "Azurite, in memory";
    let mut rates = Table::new("azurite", title, &SIDES);
    let mut times = Table::new("azurite-processor", title, &SIDES).costs(PROCESSOR_TIME, 1);
    let server = match Azurite::start(&[ACCOUNT]) {
        Ok(server) => server,
        Err(why) => {
            rates.note(why.to_string());
            return Ok(vec![rates]);
        }
    };
    let url = server.signed_url(ACCOUNT);
    for round in options.rounds() {
        for (tasks, messages) in ON_AZURITE {
            eprintln!("Azurite, round {round}: {tasks} tasks");
            let messages = options.messages(messages, tasks);
            for whose in Whose::in_turn(round) {
                let run = Run::of(whose, &url, messages, tasks, &Served::default)?;
                rates.add_all(tasks, side(whose), &run.rates);
                times.add_all(tasks, side(whose), &run.times);
            }
        }
    }
    Ok(vec![rates, times])
}

fn side(whose: Whose) -> &'static str {
    match whose {
        Whose::Ours => SIDES[0],
        Whose::Bare => SIDES[1],
    }
}

/// The figures of one run.
struct Run {
    rates: Figures,
    times: Figures,
    requests: Figures,
}

enum Side {
    Ours(QueueService),
    Bare(sdk::Queue),
}

impl Run {
    /// Runs on a new runtime, so that no connections are shared between runs.
    fn of(
        whose: Whose,
        url: &str,
        messages: u32,
        tasks: u32,
        server: &dyn Fn() -> Served,
    ) -> Outcome<Self> {
        let meter = Meter { messages, server };
        let (submit, accept, listen) = runtime()?.block_on(async {
            let side = match whose {
                Whose::Ours => Side::Ours(QueueService::connect(url).await?),
                Whose::Bare => Side::Bare(sdk::Queue::open(url).await?),
            };
            let submit = meter.measure(side.submit(messages, tasks)).await?;
            let accept = meter.measure(side.accept(messages, tasks)).await?;
            side.submit(messages, 256).await?;
            let listen = meter.measure(side.listen(messages, tasks)).await?;
            Outcome::Ok((submit, accept, listen))
        })?;
        Ok(Self {
            rates: Figures::rates(submit.rate, accept.rate, Some(listen.rate)),
            times: Figures::costs(submit.time, accept.time, listen.time),
            requests: Figures::costs(submit.requests, accept.requests, listen.requests),
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
