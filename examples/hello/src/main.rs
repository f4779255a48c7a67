//! Submits a message and handles it.

use queue_runtime::{Message, QueueService};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
struct Greeting {
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("sqlite:hello.db").await?;
    let name = "Ada".to_owned();
    service.submit(Greeting { name }).await?;

    while let Some(greeting) = service.accept::<Greeting>().await? {
        println!("hello, {}", greeting.name);
        greeting.complete().await?;
    }
    Ok(())
}
