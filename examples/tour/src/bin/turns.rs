//! With a group limit, at most so many messages of each group are in work, in all processes together, and groups take
//! turns: a tenant with many messages does not keep others waiting.
//!
//! `cargo run -p tour --bin turns` prints
//!
//! ```text
//! in work: large 1, small 1, large 2, small 2
//! in work: large 3, large 4
//! in work: large 5, large 6
//! ```

use queue_runtime::{Delivery, Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
struct Report {
    #[message(group)]
    tenant: String,
    number: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:").await?;
    let queue = service.queue::<Report>().any();
    queue.create().await?;
    queue.set_group_limit("2".parse()?).await?; // may change while programs run

    for (tenant, count) in [("large", 6), ("small", 2)] {
        let report = |number| Report {
            tenant: tenant.to_owned(),
            number,
        };
        service.submit_all((1..=count).map(report)).await?;
    }
    // Listeners receive likewise, with as many in work as their room and the limits allow.
    loop {
        let reports = service.accept_many::<Report>(10).await?;
        if reports.is_empty() {
            break;
        }
        let name = |report: &Delivery<Report>| format!("{} {}", report.tenant, report.number);
        let names: Vec<_> = reports.iter().map(name).collect();
        println!("in work: {}", names.join(", "));
        for report in reports {
            report.complete().await?;
        }
    }
    Ok(())
}
