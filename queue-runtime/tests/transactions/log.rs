//! The log of the process, which has entries of all tests.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

use tracing_subscriber::fmt::MakeWriter;

/// The warnings of all threads.
pub(crate) static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    subscriber.with_ansi(false).with_writer(log.clone()).init();
    log
});

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Whether an entry has all these texts.
    pub(crate) fn has(&self, texts: &[&str]) -> bool {
        let log = self.0.lock().expect("no panic");
        let log = String::from_utf8_lossy(&log);
        log.lines()
            .any(|line| texts.iter().all(|text| line.contains(text)))
    }
}
