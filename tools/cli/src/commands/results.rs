use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use queue_runtime::Timestamp;
use queue_runtime::backend::PageMark;
use queue_runtime::idempotency::{Forgotten, RecordState, Recorded, ResultStore, WorkKey};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure, Result};
use crate::output::table::{number, text};
use crate::output::{NOT_KNOWN, Table, age, count, escape, note};
use crate::session::Session;

/// Shows and removes the records of work that is done once, which storages but Azure keep beside the queues.
#[derive(Debug, Args)]
pub(crate) struct Results {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the records, without their values.
    List {
        /// Only records of this scope, such as `once` or `queue orders`.
        scope: Option<String>,
        /// The maximum number of records.
        #[arg(long, short = 'n', default_value_t = 50)]
        count: usize,
        /// Begin at this mark, which an earlier page has printed at its end.
        #[arg(long, value_name = "MARK")]
        from: Option<String>,
    },
    /// Find a record, and show it with its value.
    Find { scope: String, key: String },
    /// Remove a record. The next request for the work does the work again.
    Forget { scope: String, key: String },
    /// Remove the records that are no longer needed. Programs that record results remove old records by themselves.
    Sweep,
}

pub(crate) async fn run(results: Results, session: &Session) -> Result<()> {
    let store = session.service.results().ok_or_else(|| {
        Failure::new(
            Exit::Unsupported,
            "this storage has no results beside its queues",
        )
        .with_help("on Azure, results are in the object store that the programs name")
    })?;
    match results.action {
        Action::List { scope, count, from } => {
            let from = from.map(PageMark::new);
            list(&store, scope.as_deref(), count, from, session).await
        }
        Action::Find { scope, key } => find(&store, &WorkKey::new(scope, key), session).await,
        Action::Forget { scope, key } => forget(&store, &WorkKey::new(scope, key), session).await,
        Action::Sweep => sweep(&store, session).await,
    }
}

async fn list(
    store: &Arc<dyn ResultStore>,
    scope: Option<&str>,
    mut left: usize,
    mut from: Option<PageMark>,
    session: &Session,
) -> Result<()> {
    let output = &session.output;
    let mut table = Table::new(["SCOPE", "KEY", "STATE", "ENDS", "BYTES"]);
    while left > 0 {
        let page = store.list(scope, from.as_ref(), left).await?;
        left = left.saturating_sub(page.records.len());
        for record in &page.records {
            if output.json {
                output.json(&to_json(record, output.hides_payloads))?;
            } else {
                table.row(row(record, page.now, output.hides_payloads));
            }
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    if !output.json && table.is_empty() {
        output.line("nothing is recorded")?;
    } else if !output.json {
        output.table(&table)?;
    }
    match from {
        // The mark contains the last key.
        Some(_) if output.hides_payloads => note("there are more; list them with a larger --count"),
        Some(from) => note(format!(
            "there are more; go on with --from '{}'",
            from.as_str()
        )),
        None => {}
    }
    Ok(())
}

fn row(record: &Recorded, now: Timestamp, hides: bool) -> [comfy_table::Cell; 5] {
    let bytes = match &record.state {
        RecordState::Done { size } => size.to_string(),
        _ => String::new(),
    };
    let ends = match Duration::try_from(record.ends_at.duration_since(now)) {
        Ok(left) => format!("in {}", age(left)),
        Err(_) => "is over".to_owned(),
    };
    [
        text(escape(record.key.scope())),
        text(key(record, hides)),
        text(state(&record.state)),
        text(ends),
        number(bytes),
    ]
}

/// Keys are data of the application, like payloads.
fn key(record: &Recorded, hides: bool) -> String {
    if hides {
        "hidden".to_owned()
    } else {
        escape(record.key.key())
    }
}

fn state(state: &RecordState) -> String {
    match state {
        RecordState::InFlight { .. } => "in flight".to_owned(),
        RecordState::Done { .. } => "done".to_owned(),
        RecordState::Damaged { problem } => format!("damaged: {}", escape(problem)),
        _ => NOT_KNOWN.to_owned(),
    }
}

fn to_json(record: &Recorded, hides: bool) -> Value {
    let size = match &record.state {
        RecordState::Done { size } => Some(size),
        _ => None,
    };
    let value = record
        .value
        .as_deref()
        .map(|value| match std::str::from_utf8(value) {
            _ if hides => json!("hidden"),
            Ok(text) => json!({ "text": text }),
            Err(_) => json!({ "base64": STANDARD.encode(value) }),
        });
    json!({
        "scope": record.key.scope(),
        "key": if hides { "hidden" } else { record.key.key() },
        "state": state(&record.state),
        "ends_at": record.ends_at,
        "bytes": size,
        "value": value,
    })
}

async fn find(store: &Arc<dyn ResultStore>, work: &WorkKey, session: &Session) -> Result<()> {
    let record = store.find(work).await?.ok_or_else(missing)?;
    let output = &session.output;
    if output.json {
        return output.json(&to_json(&record, output.hides_payloads));
    }
    output.line(format!("state  {}", state(&record.state)))?;
    output.line(format!("ends   {}", record.ends_at))?;
    if let Some(value) = record.value.filter(|_| !output.hides_payloads) {
        let shown = match std::str::from_utf8(&value) {
            Ok(text) => escape(text),
            Err(_) => STANDARD.encode(&value),
        };
        output.line(format!("value  {shown}"))?;
    }
    Ok(())
}

async fn forget(store: &Arc<dyn ResultStore>, work: &WorkKey, session: &Session) -> Result<()> {
    session.confirm("Forget the record? The work is done again when it is asked for next.")?;
    match store.forget(work).await? {
        Forgotten::Removed => {
            let value = json!({ "scope": work.scope(), "forgotten": true });
            session.output.done("forgot the record", &value)
        }
        Forgotten::Missing => Err(missing()),
        Forgotten::InFlight { remaining } => {
            let text = format!(
                "the work is in flight; its lease lasts for {}",
                age(remaining)
            );
            let failure = Failure::new(Exit::Failed, text);
            Err(failure
                .with_help("stop the program that does the work, or wait until the lease ends"))
        }
        _ => Err(Failure::new(
            Exit::Failed,
            "the result store gave no known answer",
        )),
    }
}

fn missing() -> Failure {
    Failure::new(Exit::NotFound, "nothing is recorded under this key")
        .with_help("`queues results list SCOPE` lists the keys")
}

async fn sweep(store: &Arc<dyn ResultStore>, session: &Session) -> Result<()> {
    let mut removed = 0;
    loop {
        let swept = store
            .sweep()
            .await
            .map_err(|error| Failure::from(error).after_part(removed, "record", "removed"))?;
        removed += swept.removed;
        if !swept.more {
            break;
        }
    }
    let sentence = format!("removed {}", count(removed, "record"));
    session
        .output
        .done(&sentence, &json!({ "removed": removed }))
}
