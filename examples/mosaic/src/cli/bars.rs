use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::prelude::*;

/// A progress bar on a terminal, and a log writer that does not garble it.
#[derive(Debug, Clone)]
pub(crate) struct Bars(ProgressBar);

impl Bars {
    pub(crate) fn new() -> Self {
        Self(ProgressBar::no_length())
    }

    /// Shows what is done now.
    pub(crate) fn step(&self, what: &'static str) {
        self.show("{msg} {spinner}", what);
    }

    /// Shows how many slices are rendered.
    pub(crate) fn slices(&self, done: usize, total: usize) {
        if done < total {
            self.0.set_length(total as u64);
            self.0.set_position(done as u64);
            self.show("{msg} {bar:40} {pos}/{len} slices {elapsed}", "rendering");
        } else {
            self.step("joining");
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }

    /// Prints a warning above the bar.
    pub(crate) fn warn(&self, text: &str) {
        self.0.suspend(|| eprintln!("warning: {text}"));
    }

    fn show(&self, template: &str, what: &'static str) {
        let style = ProgressStyle::with_template(template);
        self.0.set_style(style.expect("the templates are valid"));
        self.0.set_message(what);
        self.0.enable_steady_tick(Duration::from_millis(120));
    }
}

impl<'a> MakeWriter<'a> for Bars {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// Standard error; the bar is hidden during a write.
impl Write for &Bars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Hides the warning about a message that fails for good: the client reports the reason.
pub(crate) const QUIET: &str = "warn,queue_runtime::receive::poison=error";

/// Logs to standard error, filtered by `RUST_LOG`, or else by `filter`.
pub(crate) fn log(bars: &Bars, filter: &str) {
    let usual = || filter.parse::<Targets>().expect("a filter");
    let filter = match std::env::var("RUST_LOG").as_deref() {
        Ok("") | Err(_) => usual(),
        Ok(asked) => asked.parse().unwrap_or_else(|error| {
            bars.warn(&format!("ignored `RUST_LOG`, which is {asked:?}: {error}"));
            usual()
        }),
    };
    let log = fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(bars.clone());
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .init();
}
