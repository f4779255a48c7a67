//! The results of a run: tables, and their forms as text, JSON, plots and a part of the documentation.

mod compare;
mod curves;
mod docs;
mod machine;
mod plot;
mod table;

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub(crate) use compare::compare;
pub(crate) use curves::Curve;
pub(crate) use docs::write_docs;
use machine::Machine;
pub(crate) use table::{Figures, Table, Whose, in_turn};

use crate::Outcome;

/// A run: its tables, and what is needed to repeat it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// In UTC, as RFC 3339.
    measured: String,
    command: String,
    rounds: u32,
    machine: Machine,
    pub(crate) tables: Vec<Table>,
}

impl Report {
    /// A run that starts now, by this command, with SQLite's files in this folder.
    pub(crate) fn new(command: String, rounds: u32, dir: &Path) -> Self {
        Self {
            measured: queue_runtime::Timestamp::now().to_string(),
            command,
            rounds,
            machine: Machine::new(dir),
            tables: Vec::new(),
        }
    }

    pub(crate) fn read(path: &Path) -> Outcome<Self> {
        let read = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let report = serde_json::from_slice(&read);
        Ok(report.map_err(|error| format!("{} is not a run's JSON: {error}", path.display()))?)
    }

    pub(crate) fn write(&self, path: &Path) -> Outcome<()> {
        let json = serde_json::to_string_pretty(self)?;
        fs::write(path, json).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// When, how and on what the figures were measured, in one sentence.
    fn circumstances(&self) -> String {
        let (day, _) = self
            .measured
            .split_once('T')
            .unwrap_or((&self.measured, ""));
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        format!("{day}, {rounds} of `{}`; {}.", self.command, self.machine)
    }
}
