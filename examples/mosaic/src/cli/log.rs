use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::Bars;

/// Without the warning about a message that fails for good: the client reports the reason.
pub(crate) const QUIET: &str = "warn,queue_runtime::receive::poison=error";

/// Logs to standard error, filtered by `RUST_LOG`, or else by `filter`.
pub(crate) fn log(bars: &Bars, filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(bars.clone())
        .init();
}
