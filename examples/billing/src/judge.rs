//! Reads the invoices, compares them with what they must be, and describes them.

use std::collections::BTreeMap;
use std::time::Instant;

use queue_runtime::{Failure, QueueService};

use crate::books::Books;
use crate::processes::Processes;
use crate::run::{LOOK, STANDSTILL};
use crate::workload::{Bill, Expected};

/// The share of invoices that are to be written in time.
const SHARE: f64 = 0.99;

const INVOICES: &str = "
SELECT tenant, month, amount, records, reason, written_at, written_at - (SELECT min(submitted_at)
FROM items AS o WHERE o.tenant = i.tenant AND o.month = i.month) FROM invoices AS i ORDER BY tenant, month";

/// An invoice as it was written.
pub(crate) struct Invoice {
    pub(crate) key: (i64, i64),
    pub(crate) bill: Bill,
    pub(crate) reason: Option<String>,
    /// In Unix milliseconds.
    pub(crate) written_at: i64,
    /// Milliseconds from the submission of the first item of the month.
    pub(crate) took: i64,
}

/// Reads all invoices.
pub(crate) fn invoices(books: &Books) -> Result<Vec<Invoice>, Failure> {
    let connection = books.hold();
    let mut query = connection.prepare(INVOICES)?;
    let rows = query.query_map([], |row| {
        let (amount, records): (Option<i64>, i64) = (row.get(2)?, row.get(3)?);
        Ok(Invoice {
            key: (row.get(0)?, row.get(1)?),
            bill: amount.map(|amount| (amount, records)),
            reason: row.get(4)?,
            written_at: row.get(5)?,
            took: row.get(6)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Fails unless the invoices are exactly those expected.
pub(crate) fn judge(invoices: &[Invoice], expected: &Expected) -> Result<(), Failure> {
    let found = invoices.iter().map(|invoice| (invoice.key, invoice.bill));
    let (found, wanted) = (found.collect::<BTreeMap<_, _>>(), &expected.invoices);
    let mut keys = found.keys().chain(wanted.keys());
    let Some(key) = keys.find(|key| found.get(key) != wanted.get(key)) else {
        return Ok(());
    };
    let (found, wanted) = (found.get(key), wanted.get(key));
    Err(format!("the invoice {key:?} is {found:?} and has to be {wanted:?}").into())
}

/// Waits until all queues but the poison queues are empty. Messages of killed processes come again after their lease.
pub(crate) async fn emptied(
    service: &QueueService,
    processes: &mut Processes,
) -> Result<(), Failure> {
    let began = Instant::now();
    for name in "work-items usage-records priced-items failed-records".split(' ') {
        let queue = service.any_queue(name)?;
        loop {
            processes.look()?;
            let left = queue.properties().await?.approximate_count;
            if left == 0 {
                break;
            } else if began.elapsed() > STANDSTILL {
                return Err(format!("{left} messages are left on queue `{name}`").into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

/// Describes the invoices.
pub(crate) fn describe(invoices: &[Invoice]) -> String {
    let bills: Vec<_> = invoices.iter().filter_map(|one| one.bill).collect();
    let total: i64 = bills.iter().map(|bill| bill.0).sum();
    let (count, whole, cents) = (bills.len(), total / 100, total % 100);
    let mut text = format!("{count} invoices of {whole}.{cents:02} in all; failed:");
    for invoice in invoices {
        if let (Some(reason), (tenant, month)) = (&invoice.reason, invoice.key) {
            text += &format!("\n  tenant {tenant}, month {month}: {reason}");
        }
    }
    text
}

/// Compares the times from submission to invoice with the objective, in seconds.
///
/// # Errors
/// If the objective is missed.
pub(crate) fn objective(invoices: &[Invoice], within: u32) -> Result<String, Failure> {
    let mut times: Vec<_> = invoices.iter().map(|one| one.took).collect();
    times.sort_unstable();
    let at = (times.len() as f64 * SHARE).ceil() as usize - 1;
    let p99 = times[at] as f64 / 1e3;
    let (late, all) = (
        times
            .iter()
            .filter(|took| **took > i64::from(within) * 1_000),
        times.len(),
    );
    let (late, text) = (late.count(), "p99 from submission to invoice");
    if p99 <= f64::from(within) {
        return Ok(format!(
            "{text}: {p99:.1} s; the objective of {within} s is kept"
        ));
    }
    let missed = format!("the objective of {within} s is missed by {late} of {all} invoices");
    Err(format!("{text}: {p99:.1} s; {missed}").into())
}
