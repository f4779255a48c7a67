//! `queues status` and `queues cancel`.

use queue_runtime::Message;
use serde::{Deserialize, Serialize};

use crate::support::Storage;

#[derive(Debug, Serialize, Deserialize, Message)]
#[message(queue = "reports", tracked)]
struct Report {
    month: u32,
}

#[tokio::test]
async fn a_message_is_found_by_its_id_alone_and_taken_back() {
    let storage = Storage::new();
    let service = storage.service().await;
    let report = service
        .submit(Report { month: 1 })
        .await
        .expect("submitted");
    let id = report.id.as_str();
    assert_eq!(storage.out(&["status", id]), "waiting on `reports`\n");
    let held = service
        .accept::<Report>()
        .await
        .expect("accepted")
        .expect("one");
    let status = &storage.json(&["status", id])[0];
    assert_eq!(
        (&status["status"], &status["queue"]),
        (&"held".into(), &"reports".into())
    );
    assert_eq!(status["client_id"], service.client_id().as_str());
    held.checkpoint(&"page 7 \u{7}".to_owned())
        .await
        .expect("written");
    let status = storage.out(&["status", id]);
    assert!(
        status.starts_with("held by ") && status.contains("checkpoint: \"page 7 "),
        "{status}"
    );
    let hidden = storage.out(&["--hide-payloads", "status", id]);
    assert!(
        hidden.starts_with("held by ") && !hidden.contains("page 7"),
        "{hidden}"
    );
    held.reject("broken \u{7}").await.expect("rejected");
    let status = storage.out(&["status", id]);
    assert!(
        status.starts_with("poison, on `reports-poison`, after 1 attempts: broken"),
        "{status}"
    );
    let hidden = storage.out(&["--hide-payloads", "status", id]);
    assert!(!hidden.contains("broken"), "{hidden}");
    storage
        .run(&["cancel", id])
        .failed(3, "it is on a poison queue");

    storage
        .run(&["reschedule", id, "1h"])
        .failed(3, "poison queue");

    let report = service
        .submit(Report { month: 2 })
        .await
        .expect("submitted");
    let id = report.id.as_str();
    let later = storage.json(&["reschedule", id, "1h"]);
    assert_eq!(later[0]["rescheduled"], "to");
    let status = storage.out(&["status", id]);
    assert!(status.starts_with("delayed on `reports` until"), "{status}");
    assert_eq!(storage.json(&["cancel", id])[0]["cancelled"], "removed");
    assert!(storage.out(&["status", id]).starts_with("cancelled"));
    assert_eq!(storage.json(&["cancel", id])[0]["cancelled"], "before");
    let unknown = "01990c5f-02b3-7ad1-8d19-93d2a1f0c7e4";
    assert!(storage.out(&["status", unknown]).starts_with("gone"));
    storage
        .run(&["cancel", unknown])
        .failed(3, "is not tracked");
}
