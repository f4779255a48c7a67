//! What the page shows, as it is sent to browsers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pictures::Zoom;
use queue_cost::PriceTable;
use queue_runtime::meter::TransactionKind;
use queue_runtime::{ListenerHandle, QueueService};
use serde_json::{Value, json};

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
    pub(super) figures: Value,
    /// Why it is not up to date, if it is not.
    pub(super) problem: Option<String>,
}

impl Board {
    /// The list of jobs, newest first.
    pub(super) fn overview(&self) -> Value {
        let mut jobs: Vec<&RequestState> = self.jobs.values().map(|job| &**job).collect();
        let key = |job: &RequestState| (job.record.submitted.clone(), job.record.request.clone());
        jobs.sort_by_cached_key(|job| std::cmp::Reverse(key(job)));
        jobs.truncate(MAX_JOBS);
        let jobs: Vec<Value> = jobs.into_iter().map(line).collect();
        json!({ "jobs": jobs, "figures": self.figures, "problem": self.problem })
    }

    /// One job in detail, or nothing if it is not known.
    pub(super) fn detail(&self, id: &str) -> Value {
        let job = self.jobs.values().find(|job| job.request.as_str() == id);
        let Some(job) = job else { return Value::Null };
        let mut detail = line(job);
        let asked = &job.record.asked;
        detail["reason"] = json!(job.reason());
        detail["across"] = json!(asked.across);
        detail["tile_size"] = json!(asked.tile_size);
        // As text: a number would be that of the nearest double.
        detail["tint"] = json!(asked.tint.to_string());
        detail["attempts"] = json!(job.attempts());
        detail["view"] = json!(job.plan.as_ref().and_then(view));
        detail["finished"] = job.slices.iter().map(slice).collect();
        detail
    }
}

fn line(job: &RequestState) -> Value {
    json!({
        "id": job.request.as_str(),
        "name": job.record.asked.image_name,
        "client": job.record.client,
        "submitted": job.record.submitted,
        "state": job.stage(),
        "done": job.slices.len(),
        "slices": job.planned(),
    })
}

/// How a mosaic is looked at: its size, its parts, and the first row of tiles of each slice.
fn view(plan: &PlanRecord) -> Option<Value> {
    let plan = plan.plan()?;
    let (width, height) = plan.output_size();
    let tops: Vec<u32> = (0..plan.slices())
        .map(|slice| plan.first_row(slice))
        .collect();
    let levels = Zoom::new(plan).levels();
    Some(
        json!({ "width": width, "height": height, "levels": levels, "side": Zoom::WIDTH, "tops": tops }),
    )
}

fn slice((slice, record): (&u32, &SliceRecord)) -> Value {
    let (by, millis) = match &record.outcome {
        SliceOutcome::Rendered { by, millis, .. } => (by.as_str(), *millis),
        SliceOutcome::Failed { .. } => ("", 0),
    };
    let (attempts, reason) = (record.attempts, record.failure());
    json!({ "slice": slice, "by": by, "millis": millis, "attempts": attempts, "reason": reason })
}

/// What the broker has used since its start, and its listeners.
pub(super) fn figures(service: &QueueService, prices: &PriceTable) -> Value {
    let used = service.meter().total();
    let role = |listener: &ListenerHandle| {
        let info = listener.info();
        json!({
            "queue": listener.queue().to_string(),
            "tasks": info.tasks,
            "in_flight": info.in_flight,
            "completed": info.completed,
            "retried": info.retried + info.unsettled,
            "poisoned": info.poisoned,
            "depth": info.depth,
        })
    };
    json!({
        "transactions": used.total(),
        "empty_receives": used.of(TransactionKind::EmptyReceive),
        "cost": prices.cost(&used).to_string(),
        "prices": prices.source,
        "roles": service.listeners().iter().map(role).collect::<Vec<_>>(),
    })
}
