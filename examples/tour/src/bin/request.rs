//! A request is a message whose sender awaits the handler's reply, and learns at once if there is none.
//!
//! `cargo run -p tour --bin request` prints
//!
//! ```text
//! tea costs 400 pence
//! coffee: not sold here
//! -3 bags: the message was rejected
//! ```

use std::time::Duration;

use queue_runtime::request::RequestErrorKind;
use queue_runtime::{Disposition, Failure, Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Message)]
struct PriceRequest {
    item: String,
    bags: i32,
}

/// "No" is a reply, too: what is rejected is moved to the poison queue, and somebody has to look at it.
#[derive(Debug, Serialize, Deserialize, Message)]
enum Price {
    Pence(u32),
    NotSold,
}

async fn price(request: Received<PriceRequest>) -> Result<Disposition, Failure> {
    let bags = u32::try_from(request.bags).map_err(Failure::reject)?;
    let price = match request.item.as_str() {
        "tea" => Price::Pence(100 * bags),
        _ => Price::NotSold,
    };
    Ok(Disposition::reply(&price))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Each with a service of its own, as in two processes.
    let shop = QueueService::connect("memory:shop").await?;
    shop.listener(price).start()?;
    let customer = QueueService::connect("memory:shop").await?;

    for (item, bags) in [("tea", 4), ("coffee", 1), ("tea", -3)] {
        let request = customer.request(PriceRequest {
            item: item.to_owned(),
            bags,
        });
        let reply = request
            .reply::<Price>()
            .timeout(Duration::from_secs(60))
            .await;
        match reply.map(|reply| reply.into_message()) {
            Ok(Price::Pence(pence)) => println!("{item} costs {pence} pence"),
            Ok(Price::NotSold) => println!("{item}: not sold here"),
            Err(error) if matches!(error.kind, RequestErrorKind::Rejected { .. }) => {
                println!("{bags} bags: the message was rejected");
            }
            Err(error) => return Err(error.into()),
        }
    }
    customer.delete_reply_queue().await; // otherwise another instance does, later
    shop.shutdown(Duration::from_secs(10)).await;
    Ok(())
}
