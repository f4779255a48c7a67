use clap::Args;
use queue_runtime::internal::as_u64;
use queue_runtime::sqlite::{CheckReport, FileCheck};
use serde_json::json;

use crate::arguments::General;
use crate::failure::{Exit, Failure, Result};
use crate::output::{Bar, Output, count, escape};
use crate::storage::sqlite_file;

/// Check a SQLite file, also while the file is in use: pages, checksums, and whether the tables agree with each other.
///
/// Changes nothing. Exit code 6 means damage.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Leave out indexes and checksums, which take most of the time.
    #[arg(long)]
    quick: bool,
}

pub(crate) async fn run(check: &Check, general: &General) -> Result<()> {
    let path = sqlite_file(general, "be checked")?.path().to_owned();
    let bar = Bar::new("checking", Some(0));
    let shown = bar.handle();
    let is_quick = check.quick;
    let run = move || {
        let file = FileCheck::new(path).progress(move |done| {
            shown.set_length(as_u64(done.of));
            shown.set_position(as_u64(done.rows));
        });
        let file = if is_quick { file.quick() } else { file };
        file.run()
    };
    let checked = tokio::task::spawn_blocking(run).await;
    let report = checked.map_err(|error| Failure::new(Exit::Failed, error.to_string()))??;
    drop(bar);
    write(&report, &Output::new(general))?;
    if report.is_sound() {
        return Ok(());
    }
    let text = "the file is damaged";
    let help = "keep a copy of the file; `salvage` of the library copies what is readable, as docs/sqlite.md says";
    Err(Failure::new(Exit::Partial, text).with_help(help))
}

fn write(report: &CheckReport, output: &Output) -> Result<()> {
    if output.json {
        let problems = report.problems.iter().map(|problem| {
            json!({
                "kind": format!("{:?}", problem.kind),
                "count": problem.count,
                "examples": problem.examples,
            })
        });
        return output.json(&json!({
            "queues": report.queues,
            "messages": report.messages,
            "attachments": report.attachments,
            "results": report.results,
            "problems": problems.collect::<Vec<_>>(),
        }));
    }
    output.line(format!(
        "checked {}, {}, {} and {}",
        count(report.queues, "queue"),
        count(report.messages, "message"),
        count(report.attachments, "attachment"),
        count(report.results, "result")
    ))?;
    for problem in &report.problems {
        output.line(escape(&problem.to_string()))?;
    }
    if report.is_sound() {
        output.line("nothing is wrong")?;
    }
    Ok(())
}
