//! The roles in one process, on queues in memory and in a SQLite file, without kills.

use std::collections::BTreeMap;
use std::sync::Arc;

use queue_runtime::envelope::{ClientId, Envelope};
use queue_runtime::send::UntypedMessage;
use queue_runtime::wire::Payload;
use queue_runtime::{ListenerHandle, Message, MessageId, QueueService, RequestId, testing};
use tempfile::TempDir;

use crate::books::{self, Books};
use crate::messages::{Usage, UsageRecord, WorkItem};
use crate::workload::{Bill, Workload};
use crate::{Kind, judge, roles::start};

/// The roles, with their tables.
struct Provider {
    service: QueueService,
    books: Arc<Books>,
    listeners: Vec<ListenerHandle>,
    _folder: TempDir,
}

impl Provider {
    /// Starts the roles, with the tables in the file of the queues if it is `shared`, and else beside queues in memory.
    async fn start(shared: bool) -> Self {
        let _folder = tempfile::tempdir().expect("a folder");
        let file = _folder.path().join("billing.db");
        let file = format!("sharded:4|sqlite:{}", file.display());
        let url = if shared { &file } else { "memory:" };
        let service = QueueService::connect(url).await.expect("connects");
        let books = Arc::new(Books::open(&service, _folder.path()).expect("opens"));
        assert_eq!(books.with_queues, shared);
        let kinds = [Kind::Initiator, Kind::Worker, Kind::Controller];
        let start = |kind| start(kind, &service, &books).expect("starts");
        let listeners = kinds.into_iter().flat_map(start).collect();
        Self {
            service,
            books,
            listeners,
            _folder,
        }
    }

    /// Submits work items, and returns the invoices and the reasons for missing amounts when all that follows is done.
    async fn bill(&self, items: &[WorkItem]) -> (BTreeMap<(i64, i64), Bill>, Vec<String>) {
        for work in items {
            let (work, request) = (work.clone(), work.item.to_string());
            let submitted = self.service.submit(work).request_id(request).await;
            submitted.expect("submitted");
        }
        testing::drain(&self.listeners).await.expect("drained");
        let written = judge::invoices(&self.books).expect("read");
        let invoices = written.iter().map(|one| (one.key, one.bill)).collect();
        let reasons = written.into_iter().filter_map(|one| one.reason).collect();
        (invoices, reasons)
    }

    /// How many records each item counts as priced.
    fn done(&self) -> String {
        let done = "SELECT group_concat(done) FROM (SELECT done FROM items ORDER BY item)";
        let read = self.books.hold().query_row(done, [], |row| row.get(0));
        read.expect("read")
    }
}

/// Returns an item of tenant 7 whose records have these ids, months and quantities, at 0.087899 cents a unit.
fn item(item: i64, month: i64, records: &[(i64, i64, i64)]) -> WorkItem {
    let records = records.iter().map(|&(id, month, quantity)| Usage {
        id,
        month,
        meter: "egress-mib".to_owned(),
        quantity,
    });
    WorkItem {
        item,
        tenant: 7,
        month,
        submitted_at: 0,
        records: records.collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_workload_is_billed_exactly_on_either_storage() {
    let workload = Workload::new(7, 1_000, 10);
    for shared in [true, false] {
        let provider = Provider::start(shared).await;
        let mut found = Default::default();
        for phase in &workload.phases {
            found = provider.bill(phase).await;
        }
        assert_eq!(found.0, workload.expected().invoices, "shared: {shared}");
        assert_eq!(found.1.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_count_once_and_late_records_go_to_the_next_invoice() {
    let provider = Provider::start(true).await;
    let first = item(1, 1, &[(1, 1, 1_000), (1, 1, 1_000), (2, 1, 10_000)]);
    let (invoices, _) = provider.bill(&[first.clone(), first.clone()]).await;
    assert_eq!(invoices, BTreeMap::from([((7, 1), Some((88 + 879, 2)))]));

    let late = item(2, 1, &[(2, 1, 10_000), (3, 1, 2_000)]);
    let (same, _) = provider.bill(&[late, first]).await;
    assert_eq!(same, invoices);
    // The record of month 3 waits for the invoice of that.
    let second = item(3, 2, &[(4, 2, 3_000), (5, 1, 4_000), (6, 3, 9_000)]);
    let (invoices, _) = provider.bill(&[second]).await;
    assert_eq!(invoices[&(7, 1)], same[&(7, 1)]);
    assert_eq!(invoices[&(7, 2)], Some((176 + 264 + 352, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_item_says_why_and_its_records_are_billed_when_it_is_corrected() {
    let provider = Provider::start(false).await;
    let wrong = item(1, 1, &[(1, 1, 1_000), (2, 1, -5)]);
    let (invoices, reasons) = provider.bill(std::slice::from_ref(&wrong)).await;
    assert_eq!(invoices, BTreeMap::from([((7, 1), None)]));
    assert!(
        reasons[0].contains("record 2: the quantity -5"),
        "{reasons:?}"
    );

    let corrected = item(2, 1, &[(1, 1, 2_000), (2, 1, 1_000)]);
    provider.bill(&[corrected]).await;
    // Its records come once more, and count no more.
    provider.bill(&[wrong]).await;
    assert_eq!(provider.done(), "1,2");
    let (invoices, _) = provider.bill(&[item(3, 2, &[(3, 2, 1_000)])]).await;
    assert_eq!(invoices[&(7, 2)], Some((176 + 88 + 88, 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_does_not_decode_fails_its_item() {
    let provider = Provider::start(true).await;
    let opened = item(1, 1, &[(1, 1, 1_000)]);
    let open = provider.books.transaction(|tx| books::open(tx, &opened));
    open.expect("opened");
    let client = ClientId::new("other").expect("an id");
    let (id, request) = (MessageId::random(), RequestId::new("1").expect("an id"));
    let envelope = Envelope::new(id, client, request, UsageRecord::TYPE.kind());
    let damaged = UntypedMessage::event(envelope, Payload::Json(r#"{"item":"one"}"#.into()));
    let queue = provider.service.queue::<UsageRecord>().any();
    queue.submit(damaged).await.expect("submitted");
    let (invoices, reasons) = provider.bill(&[]).await;
    assert_eq!(invoices, BTreeMap::from([((7, 1), None)]));
    assert!(reasons[0].contains("expected i64"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_two_failed_items_counts_once_in_each() {
    let provider = Provider::start(true).await;
    let items = [1, 2].map(|one| item(one, 1, &[(1, 1, 1_000), (1 + one, 1, -5)]));
    for _ in 0..2 {
        provider.bill(&items).await;
    }
    assert_eq!(provider.done(), "1,1");
}
