//! A door: messages wait, leased and with no attempt counted, while a system that the handler needs is maintained.

use queue_runtime::listener::{Arriving, Door, Wait};
use queue_runtime::{Failure, Message, Received, testing};
use queue_tests::SECOND;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

#[derive(Debug, Serialize, Deserialize, Message)]
struct Payment {
    amount: i64,
}

/// Closed while its other half says `true`.
struct MaintenanceWindow(watch::Receiver<bool>);

impl Door for MaintenanceWindow {
    fn arrive(&self, message: &Arriving<'_>) -> Result<Option<Wait>, Failure> {
        let is_urgent = message
            .decode::<Payment>()
            .is_some_and(|payment| payment.amount > 1_000);
        if is_urgent {
            return Ok(None);
        }
        let mut is_maintained = self.0.clone();
        Ok(Some(Wait::until(async move {
            // An error says that nobody can begin another window.
            let _ = is_maintained.wait_for(|is_maintained| !is_maintained).await;
        })))
    }

    fn needs_payload(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn payments_wait_for_the_end_of_the_window() {
    let service = testing::service().await;
    let payments = [7, 8, 1_000_000].map(|amount| Payment { amount });
    service.submit_all(payments).await.expect("stored");
    let (window, is_maintained) = watch::channel(true);
    let pay = async |payment: Received<Payment>| assert_eq!(payment.attempt(), 1);
    let door = MaintenanceWindow(is_maintained);
    let listener = service.listener(pay).door(door).start().expect("starts");
    tokio::time::sleep(10 * SECOND).await;
    let info = listener.info();
    assert_eq!((info.completed, info.parked), (1, 2));
    window.send(false).expect("the door has the other half");
    let drained = testing::drain([&listener]).await.expect("drained");
    assert_eq!(drained.completed(), 3);
    listener.shutdown(SECOND).await;
}
