use indicatif::{ProgressBar, ProgressStyle};
use queue_runtime::internal::as_u64;

/// The progress of long work, on standard error if that is a terminal, removed when dropped.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Starts a bar. Without a total, which may not be known, the bar counts.
    pub(crate) fn new(what: &'static str, total: Option<usize>) -> Self {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(as_u64(total)),
                "{msg} {wide_bar} {human_pos} of about {human_len}, {eta} left",
            ),
            None => (ProgressBar::new_spinner(), "{spinner} {msg} {human_pos}"),
        };
        let style = ProgressStyle::with_template(template).expect("a template");
        Self(bar.with_style(style).with_message(what))
    }

    pub(crate) fn add(&self, done: usize) {
        self.0.inc(as_u64(done));
    }

    pub(crate) fn handle(&self) -> ProgressBar {
        self.0.clone()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
