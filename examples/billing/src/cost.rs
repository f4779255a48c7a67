//! What the queue of records would cost on Azure, with packs and without.

use std::time::Duration;

use futures_util::future::try_join_all;
use queue_cost::PriceTable;
use queue_runtime::meter::TransactionKind;
use queue_runtime::{Batch, Failure, QueueService, batch};

use crate::messages::UsageRecord;
use crate::workload::Workload;

/// Longer than any machine stands still.
const LEASE: Duration = Duration::from_secs(600);

/// Compares packed and single records, by a sample in memory.
pub(crate) async fn compare(workload: &Workload) -> Result<String, Failure> {
    let items = workload.phases.iter().flatten();
    let records: Vec<_> = items.flat_map(UsageRecord::of).collect();
    let (all, sample) = (records.len(), records.len().min(20_000));
    let (prices, scale) = (PriceTable::azure_example(), all as f64 / sample as f64);
    let mut text = format!("on Azure, {all} records take, at an example's price");
    for (name, packed) in [("packed", true), ("single", false)] {
        let used = transactions(records[..sample].to_vec(), packed).await? as f64 * scale;
        let (cost, currency) = (used / 10_000.0 * prices.per_10000, &prices.currency);
        text += &format!(", {name}: {used:.0} storage transactions ({cost:.4} {currency})");
    }
    Ok(text)
}

/// Counts the storage transactions of submitting and handling records. On Azure, a pack is deleted as one message, and in memory
/// item by item; so there are as many deletions as puts.
async fn transactions(records: Vec<UsageRecord>, packed: bool) -> Result<usize, Failure> {
    let service = QueueService::connect("sharded:4|memory:").await?;
    if packed {
        service.submit_all(records).await?;
    } else {
        let submit = |record| service.submit(record).into_future();
        try_join_all(records.into_iter().map(submit)).await?;
    }
    let handler = batch(async |_: Batch<UsageRecord>| {});
    // However slow the machine is, no record may come twice.
    let listener = service.listener(handler).visibility_timeout(LEASE);
    let listener = listener.until_empty().start()?;
    let info = listener.drained().await.info;
    if info.retried + info.unsettled > 0 {
        return Err("the records of the comparison were not completed at once".into());
    }
    let used = service.meter().total();
    Ok(used.total() - used.of(TransactionKind::Delete) + used.of(TransactionKind::Put))
}
