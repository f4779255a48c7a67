//! The commands. Each module has its arguments and what it does.

pub(crate) mod backup;
pub(crate) mod browse;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod cost;
pub(crate) mod erase;
pub(crate) mod export;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod message;
pub(crate) mod metadata;
pub(crate) mod pause;
pub(crate) mod payloads;
pub(crate) mod peek;
pub(crate) mod properties;
pub(crate) mod queue;
pub(crate) mod rate;
pub(crate) mod receive;
pub(crate) mod redrive;
pub(crate) mod results;
pub(crate) mod schedules;
#[cfg(feature = "postgres")]
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod submit;
pub(crate) mod watch;

use crate::arguments::{Arguments, Command};
use crate::failure::Result;
use crate::session::Session;
use crate::storage::{self, Missing};

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let is_service = arguments
        .general
        .url
        .as_deref()
        .is_some_and(storage::is_service);
    let ended = run_command(arguments).await;
    ended.map_err(|failure| {
        if is_service {
            failure.of_service()
        } else {
            failure
        }
    })
}

async fn run_command(arguments: Arguments) -> Result<()> {
    let Arguments { general, command } = arguments;
    let missing = match &command {
        Command::Create(_) | Command::Submit(_) | Command::Import(_) => Missing::Create,
        Command::Completions(completions) => return completions::run(completions),
        Command::Cost(cost) => return cost::run(cost, &general).await,
        Command::Check(check) => return check::run(check, &general).await,
        Command::Backup(backup) => return backup::run(backup, &general).await,
        Command::Serve(serve) => return serve.run(&general).await,
        #[cfg(feature = "postgres")]
        Command::Schema(schema) => return schema::run(schema, &general),
        _ => Missing::Report,
    };
    let session = &Session::open(&general, missing).await?;
    match command {
        Command::List(list) => list::run(&list, session).await,
        Command::Properties(of) => properties::run(&of, session).await,
        Command::Watch(watch) => watch::run(&watch, session).await,
        Command::Peek(peek) => peek::run(&peek, session).await,
        Command::Browse(browse) => browse::run(browse, session).await,
        Command::Groups(of) => groups::run(&of, session).await,
        Command::Find(find) => message::find(&find, session).await,
        Command::Status(of) => status::run(&of, session).await,
        Command::History(of) => history::run(&of, session).await,
        Command::Cancel(of) => status::cancel(&of, session).await,
        Command::Reschedule(of) => status::reschedule(&of, session).await,
        Command::Submit(submit) => submit::run(submit, session).await,
        Command::Receive(receive) => receive::run(&receive, session).await,
        Command::Erase(erase) => erase::run(&erase, session).await,
        Command::Export(export) => export::run(&export, session).await,
        Command::Import(import) => import::run(&import, session).await,
        Command::Redrive(redrive) => redrive::run(redrive, session).await,
        Command::DeleteMessage(delete) => message::delete(&delete, session).await,
        Command::Edit(edit) => message::edit(&edit, session).await,
        Command::Clear(clear) => queue::clear(&clear, session).await,
        Command::Create(create) => queue::create(&create, session).await,
        Command::Delete(delete) => queue::delete(&delete, session).await,
        Command::Metadata(metadata) => metadata::run(metadata, session).await,
        Command::Rate(of) => rate::run(&of, session).await,
        Command::Pause(pause) => pause::pause(&pause, session).await,
        Command::Resume(resume) => pause::resume(&resume, session).await,
        Command::Schedules(schedules) => schedules::run(schedules, session).await,
        Command::Results(results) => results::run(results, session).await,
        Command::Payloads(payloads) => payloads::run(payloads, session).await,
        Command::Backup(_)
        | Command::Check(_)
        | Command::Completions(_)
        | Command::Cost(_)
        | Command::Serve(_) => {
            unreachable!("they need no session")
        }
        #[cfg(feature = "postgres")]
        Command::Schema(_) => unreachable!("it needs no session"),
    }
}
