use std::io::{self, Write as _};
use std::sync::Arc;

use clap::Args;
use queue_runtime::clock::SystemClock;
use queue_runtime::postgres::PostgresBuilder;

use crate::arguments::General;
use crate::failure::{Failure, Result};
use crate::storage;

/// Print the SQL by which an administrator of PostgreSQL creates the schema of the queues, for programs that may not.
///
/// queues schema --url 'postgres://db.example/shop' --role shop | psql shop
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// The role that gets the rights to run programs.
    #[arg(long)]
    role: Option<String>,
}

pub(crate) fn run(schema: &Schema, general: &General) -> Result<()> {
    let url = storage::url(general)?;
    let database = PostgresBuilder::from_url(url, Arc::new(SystemClock::new()));
    let database = database.map_err(|error| Failure::usage(format!("{error:?}")))?;
    let script = database.script(schema.role.as_deref());
    Ok(io::stdout().lock().write_all(script.as_bytes())?)
}
