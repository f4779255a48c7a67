//! `docs/observability.md` lists what there is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use queue_runtime::testing;

const PAGE: &str = include_str!("../../../../docs/observability.md");

/// Collects the names and units of metrics that are described.
#[derive(Default, Clone)]
struct Described(Arc<Mutex<BTreeSet<(String, String)>>>);

impl Described {
    fn add(&self, kind: &str, name: &KeyName) {
        let mut all = self.0.lock().expect("no panic");
        all.insert((name.as_str().to_owned(), kind.to_owned()));
    }
}

impl Recorder for Described {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add("counter", &name);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.add("gauge", &name);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        assert_eq!(unit, Some(Unit::Seconds), "{name:?}");
        self.add("histogram", &name);
    }
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Returns the first two cells of the table below a heading of the page, without their code marks.
fn table(heading: &str) -> BTreeSet<(String, String)> {
    let (_, section) = PAGE.split_once(heading).expect("the heading");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let cell = |text: &str| text.trim().trim_matches('`').to_owned();
    rows.map(|row| {
        let mut cells = row.split('|').skip(1);
        let mut next = || cell(cells.next().expect("two cells"));
        (next(), next())
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn the_page_lists_the_metrics() {
    let described = Described::default();
    let recorder = Box::leak(Box::new(described.clone()));
    let _recorder = metrics::set_default_local_recorder(recorder);
    let _service = testing::service().await;
    let described = described.0.lock().expect("no panic").clone();
    assert_eq!(table("## Metrics"), described);
}
