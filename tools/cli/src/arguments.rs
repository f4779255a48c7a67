use std::path::PathBuf;

use clap::{Args, ColorChoice, Parser, Subcommand};

#[cfg(feature = "postgres")]
use crate::commands::schema;
use crate::commands::{
    backup, browse, check, completions, cost, erase, export, groups, history, import, list,
    message, metadata, pause, payloads, peek, properties, queue, rate, receive, redrive, results,
    schedules, serve, status, submit, watch,
};

/// Shows the queues of a storage, and repairs, moves, copies and deletes their messages.
#[derive(Debug, Parser)]
#[command(name = "queues", version, disable_help_subcommand = true)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) general: General,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 not supported by this storage, \
    5 not confirmed, 6 done in part or damage found, 128 + N stopped by signal N, 141 the reader of the output has ended.";

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct General {
    /// The storage: `sqlite:PATH`, `postgres://…`, `azure://ACCOUNT`, an Azure connection string, …
    ///
    /// A URL that holds a secret belongs in QUEUE_URL: other users see the command line.
    #[arg(long, env = "QUEUE_URL", hide_env_values = true, global = true)]
    pub(crate) url: Option<String>,

    /// The container beside the queues for payloads that do not fit their messages, on Azure.
    #[arg(
        long,
        env = "QUEUE_PAYLOADS",
        value_name = "CONTAINER",
        global = true,
        hide_short_help = true
    )]
    pub(crate) payload_container: Option<String>,

    /// The folder in which the programs store payloads beside their messages.
    #[arg(
        long,
        env = "QUEUE_PAYLOAD_FOLDER",
        value_name = "FOLDER",
        global = true,
        hide_short_help = true,
        conflicts_with = "payload_container"
    )]
    pub(crate) payload_folder: Option<PathBuf>,

    /// Write JSON instead of text: one value on each line.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Leave out payloads, and error texts, which may quote payloads.
    #[arg(long, global = true)]
    pub(crate) hide_payloads: bool,

    /// Answer yes to every question.
    #[arg(long, short = 'y', global = true)]
    pub(crate) yes: bool,

    /// When to use colors.
    #[arg(long, global = true, default_value_t = ColorChoice::Auto, hide_short_help = true)]
    pub(crate) color: ColorChoice,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    List(list::List),
    Properties(properties::Properties),
    Watch(watch::Watch),
    Peek(peek::Peek),
    Browse(browse::Browse),
    Groups(groups::Groups),
    Find(message::Find),
    Status(status::StatusOf),
    History(history::History),
    Cancel(status::Cancel),
    Reschedule(status::Reschedule),
    Submit(submit::Submit),
    Receive(receive::Receive),
    Export(export::Export),
    Import(import::Import),
    Redrive(redrive::Redrive),
    DeleteMessage(message::DeleteMessage),
    Erase(erase::Erase),
    Edit(message::Edit),
    Clear(queue::Clear),
    Create(queue::Create),
    Delete(queue::Delete),
    Metadata(metadata::Metadata),
    Rate(rate::RateOf),
    Pause(pause::Pause),
    Resume(pause::Resume),
    Schedules(schedules::Schedules),
    Results(results::Results),
    #[command(subcommand)]
    Payloads(payloads::Payloads),
    Backup(backup::Backup),
    Check(check::Check),
    #[cfg(feature = "postgres")]
    Schema(schema::Schema),
    Cost(cost::Cost),
    Serve(serve::Serve),
    Completions(completions::Completions),
}
