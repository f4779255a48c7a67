use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::Bars;

/// Logs to standard error what `RUST_LOG` says, or else what `level` says.
pub(crate) fn log(bars: &Bars, level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(bars.clone())
        .init();
}
