//! What the page shows, as it is sent to browsers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pictures::Zoom;
use queue_cost::PriceTable;
use queue_runtime::QueueService;
use queue_runtime::meter::TransactionKind;
use serde::Serialize;

use crate::storage::records::{PlanRecord, RequestState, SliceRecord};
use crate::workflow::messages::SliceOutcome;

/// The greatest number of jobs in the list. `mosaic status` lists all.
const MAX_JOBS: usize = 200;

/// All that is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// By the folder of their records.
    pub(super) jobs: BTreeMap<String, Arc<RequestState>>,
    /// Folders of jobs whose records cannot be read.
    pub(super) unreadable: BTreeSet<String>,
    pub(super) figures: Figures,
    /// Why it is not up to date, if it is not.
    pub(super) problem: Option<String>,
}

/// What the broker has used since its start.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub(super) struct Figures {
    transactions: u64,
    empty_receives: u64,
    cost: String,
    prices: String,
    roles: Vec<Role>,
}

/// A listener in this process.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Role {
    queue: String,
    tasks: usize,
    in_flight: usize,
    completed: u64,
    retried: u64,
    poisoned: u64,
    depth: Option<u64>,
}

/// The list of jobs, newest first.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Overview<'a> {
    jobs: Vec<Line<'a>>,
    figures: &'a Figures,
    problem: Option<&'a str>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Line<'a> {
    id: &'a str,
    name: &'a str,
    client: &'a str,
    submitted: &'a str,
    state: &'static str,
    done: usize,
    slices: Option<u32>,
}

/// One job in detail.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Detail<'a> {
    #[serde(flatten)]
    line: Line<'a>,
    reason: Option<&'a str>,
    across: u32,
    tile_size: u8,
    tint: f32,
    attempts: u32,
    view: Option<View>,
    finished: Vec<Slice<'a>>,
}

/// How a mosaic is looked at.
#[derive(Debug, PartialEq, Serialize)]
struct View {
    width: u32,
    height: u32,
    levels: u32,
    /// The width of a part in pixels.
    side: u32,
    /// The first row of tiles of each slice.
    tops: Vec<u32>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Slice<'a> {
    slice: u32,
    by: &'a str,
    millis: u64,
    attempts: u32,
    reason: Option<&'a str>,
}

impl Board {
    pub(super) fn overview(&self) -> Overview<'_> {
        let mut jobs: Vec<_> = self.jobs.values().map(|job| Line::of(job)).collect();
        jobs.sort_by(|a, b| (b.submitted, b.id).cmp(&(a.submitted, a.id)));
        jobs.truncate(MAX_JOBS);
        Overview {
            jobs,
            figures: &self.figures,
            problem: self.problem.as_deref(),
        }
    }

    pub(super) fn detail(&self, id: &str) -> Option<Detail<'_>> {
        let job = self.jobs.values().find(|job| job.request.as_str() == id);
        Some(Detail::of(job?))
    }
}

impl<'a> Line<'a> {
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

impl<'a> Detail<'a> {
    fn of(job: &'a RequestState) -> Self {
        let asked = &job.record.asked;
        Self {
            line: Line::of(job),
            reason: job.reason(),
            across: asked.across,
            tile_size: asked.tile_size,
            tint: asked.tint,
            attempts: job.attempts(),
            view: job.plan.as_ref().and_then(View::of),
            finished: (job.slices.iter())
                .map(|(slice, record)| Slice::of(*slice, record))
                .collect(),
        }
    }
}

impl View {
    fn of(plan: &PlanRecord) -> Option<Self> {
        let plan = plan.plan()?;
        let zoom = Zoom::new(plan);
        let (width, height) = plan.output_size();
        Some(Self {
            width,
            height,
            levels: zoom.levels(),
            side: Zoom::WIDTH,
            tops: (0..plan.slices())
                .map(|slice| plan.first_row(slice))
                .collect(),
        })
    }
}

impl<'a> Slice<'a> {
    fn of(slice: u32, record: &'a SliceRecord) -> Self {
        let (by, millis) = match &record.outcome {
            SliceOutcome::Rendered { by, millis, .. } => (by.as_str(), *millis),
            SliceOutcome::Failed { .. } => ("", 0),
        };
        Self {
            slice,
            by,
            millis,
            attempts: record.attempts,
            reason: record.failure(),
        }
    }
}

impl Figures {
    pub(super) fn of(service: &QueueService, prices: &PriceTable) -> Self {
        let used = service.meter().total();
        let role = |listener: &queue_runtime::ListenerHandle| {
            let info = listener.info();
            Role {
                queue: listener.queue().to_string(),
                tasks: info.tasks,
                in_flight: info.in_flight,
                completed: info.completed,
                retried: info.retried + info.unsettled,
                poisoned: info.poisoned,
                depth: info.depth,
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
