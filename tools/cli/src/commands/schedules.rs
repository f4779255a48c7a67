use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::failure::{Exit, Failure, Result};
use crate::output::table::text;
use crate::output::{Table, age, escape};
use crate::session::Session;

/// How many schedules are read at once.
const PAGE: usize = 200;

/// Shows, pauses and runs schedules, whose ticks the storage records. Not on Azure.
#[derive(Debug, Args)]
pub(crate) struct Schedules {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the schedules, running or not. `list` is the default.
    List,
    /// Pause a schedule in all processes: no tick is submitted until `resume`.
    Pause { name: String },
    /// Resume a paused schedule, within 30 seconds. The ticks of the pause are left out.
    Resume { name: String },
    /// Have a process that runs the schedule submit its message once more, within 30 seconds, also if it is paused.
    Run { name: String },
    /// Let a schedule begin anew now, because its last tick was recorded by a clock that was ahead.
    Reset { name: String },
    /// Remove the record of a schedule that no program starts any more.
    Forget { name: String },
}

pub(crate) async fn run(schedules: Schedules, session: &Session) -> Result<()> {
    let service = &session.service;
    match schedules.action.unwrap_or(Action::List) {
        Action::List => list(session).await,
        Action::Pause { name } => {
            let known = service.pause_schedule(&name).await?;
            done(known, &name, "paused", session)
        }
        Action::Resume { name } => {
            let known = service.resume_schedule(&name).await?;
            done(known, &name, "resumed", session)
        }
        Action::Run { name } => {
            let known = service.run_schedule(&name).await?;
            done(known, &name, "asked for a run of", session)
        }
        Action::Reset { name } => {
            session.confirm(&format!("Let schedule `{name}` begin anew now?"))?;
            let known = service.reset_schedule(&name).await?;
            done(known, &name, "reset", session)
        }
        Action::Forget { name } => {
            session.confirm(&format!("Forget the last tick of schedule `{name}`?"))?;
            let known = service.forget_schedule(&name).await?;
            done(known, &name, "forgot", session)
        }
    }
}

fn done(known: bool, name: &str, what: &str, session: &Session) -> Result<()> {
    if !known {
        let text = format!("the storage knows no schedule `{name}`");
        return Err(Failure::new(Exit::NotFound, text));
    }
    let sentence = format!("{what} schedule `{name}`");
    session
        .output
        .done(&sentence, &json!({ "schedule": name, "done": what }))
}

async fn list(session: &Session) -> Result<()> {
    let mut table = Table::new(["SCHEDULE", "LAST TICK", "AGO", "NEXT TICK", "STATE"]);
    let mut from = None;
    loop {
        let page = session
            .service
            .recorded_schedules(from.as_ref(), PAGE)
            .await?;
        for schedule in page.schedules {
            let tick = schedule.last_tick;
            if session.output.json {
                let (tick, problem) = (tick.as_ref().ok(), tick.as_ref().err());
                let line = json!({
                    "schedule": schedule.name,
                    "last_tick": tick,
                    "next_tick": schedule.next_tick,
                    "is_paused": schedule.is_paused,
                    "run_asked_at": schedule.run_asked_at,
                    "problem": problem,
                });
                session.output.json(&line)?;
                continue;
            }
            let (tick, ago) = match tick {
                Ok(tick) => {
                    let past = Duration::try_from(page.now.duration_since(tick));
                    (
                        tick.to_string(),
                        past.map_or_else(|_| "ahead".to_owned(), age),
                    )
                }
                Err(error) => (escape(&format!("{error:?}")), String::new()),
            };
            let next = schedule.next_tick.filter(|_| !schedule.is_paused);
            let next = next.map(|tick| tick.to_string()).unwrap_or_default();
            let state = match (schedule.is_paused, schedule.run_asked_at) {
                (false, None) => "",
                (true, None) => "paused",
                (false, Some(_)) => "a run is asked for",
                (true, Some(_)) => "paused; a run is asked for",
            };
            table.row([escape(&schedule.name), tick, ago, next, state.to_owned()].map(text));
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    if session.output.json {
        return Ok(());
    }
    if table.is_empty() {
        return session.output.line("the storage knows no schedules");
    }
    session.output.table(&table)
}
