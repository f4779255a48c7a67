//! The program submits a receipt for each order, here without other languages. `queue-runtime/tests/interop/languages.rs`
//! runs the program with them.

use std::process::{Child, Command};
use std::time::Duration;

use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

/// Long enough for the slowest machine; only a hang meets it.
const GUARD: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "shop.order", queue = "orders", wire = "bare")]
struct Order {
    number: u32,
    item: String,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "shop.receipt", queue = "receipts")]
struct Receipt {
    order: u32,
    text: String,
}

/// The program, ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn each_order_has_a_receipt() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    let service = QueueService::connect(&url).await.expect("connect");
    for number in 1..=3 {
        let item = format!("café no. {number}");
        let submitted = service.submit(Order { number, item }).await;
        submitted.expect("submit");
    }
    let mut program = Command::new(env!("CARGO_BIN_EXE_languages"));
    let program = program.env("QUEUE_URL", &url).spawn();
    let _program = Program(program.expect("it starts"));

    let mut receipts = Vec::new();
    for _ in 1..=3 {
        let receipt = service.accept::<Receipt>().wait(GUARD).await;
        let receipt = receipt.expect("accept").expect("it was submitted");
        receipts.push((receipt.order, receipt.text.clone()));
        receipt.complete().await.expect("complete");
    }
    receipts.sort_unstable();
    let expected = (1..=3).map(|number| (number, format!("café no. {number} is on its way")));
    assert!(receipts.into_iter().eq(expected));
}
