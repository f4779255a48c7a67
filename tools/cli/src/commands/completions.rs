use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Result;

/// Write a script that completes this command line in a shell.
///
/// For bash: queues completions bash > ~/.local/share/bash-completion/completions/queues
#[derive(Debug, Args)]
pub(crate) struct Completions {
    shell: Shell,
}

pub(crate) fn run(completions: &Completions) -> Result<()> {
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(completions.shell, &mut command, "queues", &mut script);
    Ok(io::stdout().lock().write_all(&script)?)
}
