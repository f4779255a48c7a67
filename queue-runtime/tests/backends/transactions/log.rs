//! The log of the process, which has entries of all tests.

use std::sync::LazyLock;

use queue_tests::Written;

/// The warnings of all threads.
pub(crate) static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Written::default();
    let written = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    let subscriber = subscriber.with_ansi(false);
    subscriber.with_writer(move || written.clone()).init();
    Log(log)
});

pub(crate) struct Log(Written);

impl Log {
    /// Whether an entry has all these texts.
    pub(crate) fn has(&self, texts: &[&str]) -> bool {
        let log = self.0.text();
        log.lines()
            .any(|line| texts.iter().all(|text| line.contains(text)))
    }
}
