use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use queue_runtime::Message;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "bills", kind = "shop.bill")]
pub(crate) struct Bill {
    pub(crate) order: u32,
}

/// Collects the metrics of this thread until it is dropped.
pub(crate) struct Scrape {
    handle: PrometheusHandle,
    _recorder: metrics::LocalRecorderGuard<'static>,
}

impl Scrape {
    pub(crate) fn start() -> Self {
        Self::of(PrometheusBuilder::new())
    }

    pub(crate) fn of(exporter: PrometheusBuilder) -> Self {
        let recorder = exporter.build_recorder();
        let handle = recorder.handle();
        let recorder = Box::leak(Box::new(recorder));
        let _recorder = metrics::set_default_local_recorder(recorder);
        Self { handle, _recorder }
    }

    /// Returns the lines with values, sorted.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = self.handle.render();
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Returns the value of a metric with these labels.
    pub(crate) fn value(&self, metric: &str) -> Option<f64> {
        let lines = self.lines();
        let line = lines.iter().find_map(|line| line.strip_prefix(metric))?;
        Some(line.trim().parse().expect("a number"))
    }
}
