//! What the page shows, as it is sent to browsers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pictures::Zoom;
use queue_cost::PriceTable;
use queue_runtime::meter::TransactionKind;
use queue_runtime::{ListenerHandle, QueueService};
use serde::Serialize;

use crate::storage::records::{PlanRecord, RequestState, SliceRecord};
use crate::workflow::messages::SliceOutcome;

/// The greatest number of jobs in the list. `mosaic status` lists all.
const MAX_JOBS: usize = 200;

/// All that the watcher knows.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// By the folder of their records.
    pub(super) jobs: BTreeMap<String, Arc<RequestState>>,
    /// Folders of jobs whose records cannot be read.
    pub(super) unreadable: BTreeSet<String>,
    pub(super) usage: Usage,
    /// Why the board is out of date, if it is.
    pub(super) problem: Option<String>,
}

/// What the broker has used since its start, and its listeners.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Usage {
    transactions: usize,
    empty_receives: usize,
    cost: String,
    prices: String,
    roles: Vec<ListenerUsage>,
}

#[derive(Debug, Clone, Serialize)]
struct ListenerUsage {
    queue: String,
    tasks: usize,
    in_flight: usize,
    completed: usize,
    retried: usize,
    poisoned: usize,
}

/// The list of jobs, newest first.
#[derive(Debug, Serialize)]
pub(super) struct Overview<'a> {
    jobs: Vec<JobLine<'a>>,
    figures: &'a Usage,
    problem: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct JobLine<'a> {
    id: &'a str,
    name: &'a str,
    client: &'a str,
    submitted: &'a str,
    state: &'static str,
    done: usize,
    slices: Option<u32>,
}

/// One job in detail.
#[derive(Debug, Serialize)]
pub(super) struct JobDetail<'a> {
    #[serde(flatten)]
    line: JobLine<'a>,
    reason: Option<&'a str>,
    across: u32,
    tile_size: u8,
    tint: f32,
    attempts: usize,
    view: Option<View>,
    finished: Vec<FinishedSlice<'a>>,
}

/// How a mosaic is looked at: its size, its parts, and the first row of tiles of each slice.
#[derive(Debug, Serialize)]
struct View {
    width: u32,
    height: u32,
    levels: u32,
    side: u32,
    tops: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct FinishedSlice<'a> {
    slice: u32,
    by: &'a str,
    millis: u64,
    attempts: usize,
    reason: Option<&'a str>,
}

impl Board {
    pub(super) fn overview(&self) -> Overview<'_> {
        let mut jobs: Vec<&RequestState> = self.jobs.values().map(|job| &**job).collect();
        jobs.sort_by_key(|&job| Reverse((&job.record.submitted, &job.record.request)));
        jobs.truncate(MAX_JOBS);
        Overview {
            jobs: jobs.into_iter().map(JobLine::of).collect(),
            figures: &self.usage,
            problem: self.problem.as_deref(),
        }
    }

    /// One job in detail, if it is known.
    pub(super) fn detail(&self, id: &str) -> Option<JobDetail<'_>> {
        let job = self.jobs.values().find(|job| job.request.as_str() == id)?;
        let asked = &job.record.asked;
        Some(JobDetail {
            line: JobLine::of(job),
            reason: job.reason(),
            across: asked.across,
            tile_size: asked.tile_size,
            tint: asked.tint,
            attempts: job.attempts(),
            view: job.plan.as_ref().and_then(View::of),
            finished: job.slices.iter().map(FinishedSlice::of).collect(),
        })
    }
}

impl Usage {
    pub(super) fn of(service: &QueueService, prices: &PriceTable) -> Self {
        let used = service.meter().total();
        let role = |listener: &ListenerHandle| {
            let info = listener.info();
            ListenerUsage {
                queue: listener.queue().to_string(),
                tasks: info.tasks,
                in_flight: info.in_flight,
                completed: info.completed,
                retried: info.retried + info.unsettled,
                poisoned: info.poisoned,
            }
        };
        Self {
            transactions: used.total(),
            empty_receives: used.of(TransactionKind::EmptyReceive),
            cost: prices.cost(&used).to_string(),
            prices: prices.source.clone(),
            roles: service.listeners().iter().map(role).collect(),
        }
    }
}

impl<'a> JobLine<'a> {
    fn of(job: &'a RequestState) -> Self {
        Self {
            id: job.request.as_str(),
            name: &job.record.asked.image_name,
            client: &job.record.client,
            submitted: &job.record.submitted,
            state: job.stage(),
            done: job.slices.len(),
            slices: job.planned(),
        }
    }
}

impl View {
    fn of(plan: &PlanRecord) -> Option<Self> {
        let plan = plan.plan()?;
        let (width, height) = plan.output_size();
        Some(Self {
            width,
            height,
            levels: Zoom::new(plan).levels(),
            side: Zoom::WIDTH,
            tops: (0..plan.slices())
                .map(|slice| plan.first_row(slice))
                .collect(),
        })
    }
}

impl<'a> FinishedSlice<'a> {
    fn of((slice, record): (&u32, &'a SliceRecord)) -> Self {
        let (by, millis) = match &record.outcome {
            SliceOutcome::Rendered { by, millis, .. } => (by.as_str(), *millis),
            SliceOutcome::Failed { .. } => ("", 0),
        };
        Self {
            slice: *slice,
            by,
            millis,
            attempts: record.attempts,
            reason: record.failure(),
        }
    }
}
