//! A run: submits the usage, kills processes, and checks what was billed.

use std::time::{Duration, Instant};

use queue_runtime::Failure;
use queue_runtime::sqlite::rusqlite::Row;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use crate::books::{self, Books};
use crate::chart::{self, Course};
use crate::judge::{Invoice, describe, emptied, invoices, judge, objective};
use crate::processes::{Processes, victims};
use crate::role::connect;
use crate::workload::{Expected, MIN_RECORDS, Workload};
use crate::{Kind, Place, Run, cost};

/// How often the state is sampled.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// The time without any progress after which a run is given up.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(300);

const PROGRESS: &str =
    "SELECT (SELECT coalesce(sum(done), 0) FROM items), (SELECT count(*) FROM invoices)";

struct Running<'a> {
    books: &'a Books,
    expected: &'a Expected,
    processes: Processes,
    victims: Vec<Kind>,
    random: SmallRng,
    began: Instant,
    course: Course,
}

/// Runs the processes until everything is billed, and prints the figures.
#[tokio::main]
pub(crate) async fn run(arguments: &Run) -> Result<(), Failure> {
    let seed = arguments.seed.unwrap_or_else(rand::random);
    println!("--seed {seed}");
    let temporary = tempfile::Builder::new().prefix("billing-").tempdir()?;
    let data = arguments.data.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(data)?;
    if std::fs::read_dir(data)?.next().is_some() {
        return Err(format!("folder `{}` is not empty", data.display()).into());
    }
    let own = || format!("sharded:4|sqlite:{}", data.join("billing.db").display());
    let place = Place {
        url: arguments.url.clone().unwrap_or_else(own),
        data: data.to_owned(),
        workers: arguments.workers,
    };
    let (records, tenants) = (arguments.records as usize, arguments.tenants as usize);
    let (least, kills) = (tenants * MIN_RECORDS, arguments.kills as usize);
    if records < least || records < 100 * kills {
        return Err(format!("{tenants} tenants and {kills} kills need more records").into());
    }
    let workload = Workload::new(seed, records, tenants);
    let expected = workload.expected();
    let service = connect(&place.url).await?;
    let books = Books::open(&service, data)?;
    let mut random = SmallRng::seed_from_u64(seed);
    let zero = books::now();
    let mut running = Running {
        books: &books,
        expected: &expected,
        processes: Processes::start(place)?,
        victims: victims(kills, &mut random),
        random,
        began: Instant::now(),
        course: Course::default(),
    };
    for (phase, items) in workload.phases.iter().enumerate() {
        for work in items {
            let (mut work, request) = (work.clone(), work.item.to_string());
            work.submitted_at = books::now();
            service.submit(work).request_id(request).await?;
        }
        running.until_billed(phase).await?;
    }
    let took = running.began.elapsed().as_secs_f64();
    emptied(&service, &mut running.processes).await?;
    running.processes.end()?;
    let invoices = invoices(&books)?;
    judge(&invoices, &expected)?;

    let mut course = running.course;
    let seconds = |milliseconds: i64| milliseconds as f64 / 1e3;
    let point = |one: &Invoice| (seconds(one.written_at - zero), seconds(one.took));
    course.latencies = invoices.iter().map(point).collect();
    println!("{}", describe(&invoices));
    println!("{}", cost::compare(&workload).await?);
    let title = format!("{records} records of {tenants} tenants in {took:.1} s with {kills} kills");
    let plot = arguments.plot.display();
    let drawn = chart::draw(&course, &title, &arguments.plot);
    drawn.map_err(|error| format!("failed to draw the chart `{plot}`: {error}"))?;
    println!("{title}: every invoice is exact to the cent; {plot} shows the course");
    println!("{}", objective(&invoices, arguments.within)?);
    Ok(())
}

impl Running<'_> {
    /// Waits until a phase is priced and invoiced. Kills processes on the way.
    async fn until_billed(&mut self, phase: usize) -> Result<(), Failure> {
        let priced = &self.expected.priced;
        let (submitted, all): (i64, i64) = (priced[..=phase].iter().sum(), priced.iter().sum());
        let month = if phase == 2 { 2 } else { 1 };
        let invoices = self.expected.invoices.keys();
        let invoices = invoices.filter(|key| key.1 <= month).count() as i64;
        let (mut last, mut since) = ((0, 0), Instant::now());
        loop {
            self.processes.look()?;
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let (done, written): (i64, i64) = self.books.hold().query_row(PROGRESS, [], read)?;
            let at = self.began.elapsed().as_secs_f64();
            self.course.waiting.push((at, (submitted - done) as f64));
            self.course.workers.push((at, self.processes.workers()));
            let (kills, killed) = (self.victims.len() as i64, self.course.kills.len());
            if let Some(kind) = self.victims.get(killed)
                && done * (kills + 1) >= all * (killed as i64 + 1)
            {
                if self.processes.kill(*kind, &mut self.random)? {
                    self.course.kills.push((at, *kind));
                    self.course.workers.push((at, self.processes.workers()));
                }
            } else if (done, written) == (submitted, invoices) {
                return Ok(());
            }
            if last != (done, written) {
                (last, since) = ((done, written), Instant::now());
            }
            if done > submitted || since.elapsed() > STANDSTILL {
                let told =
                    format!("{done} of {submitted} records, {written} of {invoices} invoices");
                return Err(format!("the run stands still: {told}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
