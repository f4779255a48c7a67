//! Poison queues to redrive.

use queue_runtime::testing::FaultInjector;
use queue_runtime::{AnyQueue, QueueService};

use crate::support::storage::Storage;

/// An event on a poison queue that comes from this queue. Its id is also that of its request.
pub(crate) fn poison_event(id: &str, queue: &str) -> String {
    let record = format!(r#""poisonreason":"rejected","poisonqueue":"{queue}""#);
    format!(
        r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"order","requestid":"{id}",{record},"data":{{"number":1,"note":""}}}}"#
    )
}

pub(crate) async fn storages() -> [(QueueService, FaultInjector); 2] {
    let browsable = Storage::new().browsable().connect().await;
    [browsable, Storage::new().connect().await]
}

pub(crate) fn poison(service: &QueueService) -> AnyQueue {
    service.any_queue("orders-poison").expect("a name")
}
