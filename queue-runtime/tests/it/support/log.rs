//! The log of a test.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the log lines of this thread up to a level, as `field=value` lines.
#[derive(Debug, Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>, Level);

impl Log {
    /// Keeps warnings and errors.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        Self::up_to(Level::WARN)
    }

    pub(crate) fn up_to(level: Level) -> (Self, DefaultGuard) {
        let log = Self(Arc::default(), level);
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    /// Keeps the warnings and errors of all threads of a process, whose only test the calling one is.
    pub(crate) fn of_process() -> Self {
        let log = Self(Arc::default(), Level::WARN);
        let set = tracing::subscriber::set_global_default(log.clone());
        set.expect("the only one");
        log
    }

    pub(crate) fn count(&self, text: &str) -> usize {
        let lines = self.0.lock().expect("no panic");
        lines.iter().filter(|line| line.contains(text)).count()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }

    /// The line with this text.
    pub(crate) fn line(&self, text: &str) -> String {
        let lines = self.0.lock().expect("no panic");
        let found = lines.iter().find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{lines:?}")).clone()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push_str(&format!(" {}={value}", field.name()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.1
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
