//! Processes that submit and handle packs on one SQLite file are killed and stopped. Nothing is lost, and what runs twice
//! has a documented cause.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use queue_crash::campaign::{Campaign, Payloads};
use queue_crash::crew::Crew;
use queue_crash::history::{Figures, Violation};
use queue_crash::ledger::{self, Event};
use queue_crash::messages::CrashOrder;
use queue_crash::packs::{Marks, explain};
use queue_crash::plan;
use queue_crash::sabotage::Bug;
use queue_crash::worker::{ATTEMPTS, DEADLY, PAYLOADS, Role, in_folder};
use queue_runtime::QueueService;
use queue_runtime::envelope::PoisonReason;

use crate::points;

const PROGRAM: &str = env!("CARGO_BIN_EXE_crash-worker");

/// The orders of which one is deadly.
const ORDERS: usize = 60;

/// The processes that handle them.
const PROCESSES: u64 = 2;

/// By then, a few packs are submitted.
const LINES: usize = 200;

fn payloads(marks: Marks) -> Payloads {
    match marks {
        Marks::Beside => Payloads::InFile,
        // A storage with a payload store beside it is not atomic.
        Marks::InHeader => Payloads::InFolder,
    }
}

fn run(campaign: &Campaign<'_>) -> Figures {
    let figures = campaign.run();
    let figures = figures.unwrap_or_else(|violations| panic!("{violations:#?}"));
    let Campaign {
        kills,
        stops,
        aborts,
        ..
    } = campaign;
    println!(
        "{kills} kills, {} aborts, {stops} stops: {figures}",
        aborts.len()
    );
    figures
}

fn campaign(marks: Marks) -> Campaign<'static> {
    Campaign {
        program: Path::new(PROGRAM),
        seed: plan::seed(),
        roles: &[Role::Pack, Role::Unpack, Role::Unpack, Role::Unpack],
        // So that processes live for as long as it takes to renew a lease.
        between: 300,
        kills: 2,
        stops: 0,
        ends: 0,
        aborts: &[],
        alone_after: None,
        bug: None,
        payloads: payloads(marks),
        database: None,
    }
}

fn killed(marks: Marks) {
    let campaign = Campaign {
        kills: plan::times(8),
        stops: plan::times(2),
        ends: plan::times(3),
        ..campaign(marks)
    };
    let figures = run(&campaign);
    assert!(figures.acknowledged > campaign.kills, "{figures}");
    let causes = figures.causes.expect("there were packs");
    assert!(causes.opened > 0 && causes.moved > 0, "{figures}");
}

#[test]
fn nothing_of_a_pack_is_lost_or_settled_twice_when_processes_are_killed_and_stopped() {
    killed(Marks::Beside);
}

#[test]
fn of_packs_whose_marks_are_in_the_header_only_what_was_not_renewed_runs_twice() {
    killed(Marks::InHeader);
}

fn abort(marks: Marks) {
    for aborts in points::of_packs(marks) {
        let campaign = Campaign {
            aborts: &aborts,
            alone_after: Some(LINES),
            ..campaign(marks)
        };
        for (point, role) in &aborts {
            println!("aborted: {role} {point:?}");
        }
        run(&campaign);
    }
}

#[test]
fn nothing_of_a_pack_is_lost_when_processes_abort_at_named_points() {
    abort(Marks::Beside);
}

#[test]
fn nothing_of_a_pack_is_lost_at_named_points_where_marks_are_in_the_header() {
    abort(Marks::InHeader);
}

#[test]
fn a_renewal_that_does_not_say_what_is_gone_is_detected() {
    let campaign = Campaign {
        bug: Some(Bug::ForgetsMarks),
        ..campaign(Marks::InHeader)
    };
    campaign.detects(|violation| match violation {
        Violation::Other(what) => what.contains("is missing in what was written to its pack"),
        _ => false,
    });
}

/// An order ends each process that handles it, also in a pack of others. Processes handle one message at a time, so that
/// no other is in flight then; each of them panics if another attempt was counted than its message has had.
async fn deadly(marks: Marks) {
    let mut crew = Crew::new(Path::new(PROGRAM), plan::seed());
    let mut builder = QueueService::builder(&format!("sqlite:{}", crew.file().display()));
    if marks == Marks::InHeader {
        let folder = crew.folder().join("payloads");
        builder = builder.payloads(in_folder(&folder));
        crew.environment.push((PAYLOADS, folder.into()));
    }
    let service = builder.connect().await.expect("the file opens");
    let count = plan::times(ORDERS);
    let name = |at: usize| match at % ORDERS {
        13 => format!("{DEADLY}-{at}-p"),
        _ => format!("{at}-p"),
    };
    let orders = (0..count).map(|at| CrashOrder::named(name(at)));
    let submitted = service.submit_all(orders).packed().await;
    submitted.expect("submitted");
    // Once in its pack, then by itself, and a last time before it is poison.
    let (most, deadly) = (1 + ATTEMPTS + 1, count / ORDERS);
    for _ in 0..PROCESSES {
        crew.start(Role::UnpackAlone, None);
    }
    while depth(&service).await > 0 {
        let _ = crew.line();
        while crew.ended().is_some() {
            let aborts = crew.started - PROCESSES;
            assert!(aborts < (most * deadly) as u64, "it is never put aside");
            crew.start(Role::UnpackAlone, None);
        }
    }
    let running = crew.processes.iter().map(|process| process.number);
    let running: BTreeSet<u64> = running.collect();
    let aborted: BTreeSet<u64> = (1..=crew.started).collect();
    let aborted = &aborted - &running;
    crew.end(Role::UnpackAlone);
    let (mut runs, mut finished) = (BTreeMap::new(), BTreeSet::new());
    let mut ledgers = BTreeMap::new();
    for number in 1..=crew.started {
        let entries = ledger::read(&crew.folder().join(format!("{number}.ledger")));
        for entry in &entries {
            match entry.event {
                Event::Started => *runs.entry(entry.name.clone()).or_default() += 1,
                Event::Finishing => drop(finished.insert(entry.name.clone())),
                _ => {}
            }
        }
        ledgers.insert(number, entries);
    }
    let causes = explain(&ledgers, &aborted, marks);
    let causes = causes.unwrap_or_else(|violations| panic!("{violations:#?}"));
    let poison = service.queue::<CrashOrder>().poison().expect("a name");
    let page = poison.browse(None, 100).await.expect("browsed");
    assert_eq!(page.messages.len(), deadly);
    for message in &page.messages {
        let record = message.body.poison().expect("it was moved there");
        assert_eq!(record.reason, PoisonReason::Crashed, "{record:?}");
        let order: CrashOrder = message.body.decode().expect("an order");
        assert!(order.name.starts_with(DEADLY), "{}", order.name);
        let runs: usize = runs.remove(&order.name).expect("it ran");
        assert!((2..=most).contains(&runs), "{runs}");
    }
    assert_eq!(finished.len(), count - page.messages.len(), "all others");
    assert!(runs.into_keys().eq(finished), "and nothing else");
    println!(
        "{} processes aborted: {count} orders, {deadly} of them poison; {causes}",
        aborted.len()
    );
    crew.judge(()).unwrap_or_else(|wrong| panic!("{wrong:#?}"));
}

async fn depth(service: &QueueService) -> usize {
    let properties = service.queue::<CrashOrder>().any().properties().await;
    let properties = properties.expect("the queue exists");
    properties.approximate_count
}

#[tokio::test]
async fn an_item_that_kills_each_process_is_poison_and_costs_the_others_nothing() {
    deadly(Marks::Beside).await;
}

#[tokio::test]
async fn an_item_that_kills_each_process_is_poison_where_marks_are_in_the_header() {
    deadly(Marks::InHeader).await;
}
