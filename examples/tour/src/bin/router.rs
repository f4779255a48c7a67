//! A router has a handler for each of several types of messages on one queue, each with its own settings.
//!
//! `cargo run -p tour --bin router` prints
//!
//! ```text
//! cat.png is now 300 pixels wide
//! dog.png is now 300 pixels wide
//! mail to ada@example.com: your picture is ready
//! mail to nobody: failed
//! 3 messages are completed, 1 is poison
//! ```

use queue_runtime::listener::Route;
use queue_runtime::{Disposition, Message, QueueService, Received};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "tasks")]
struct Resize {
    picture: String,
    width: u32,
    owner: String,
}

#[derive(Serialize, Deserialize, Message)]
#[message(queue = "tasks")]
struct Mail {
    to: String,
    text: String,
}

async fn resize(job: Received<Resize>) -> Disposition {
    println!("{} is now {} pixels wide", job.picture, job.width);
    Disposition::complete().then(&Mail {
        to: job.owner.clone(),
        text: "your picture is ready".to_owned(),
    })
}

async fn send(mail: Received<Mail>) -> Result<(), String> {
    if !mail.to.contains('@') {
        println!("mail to {}: failed", mail.to);
        return Err(format!("`{}` is no address", mail.to));
    }
    println!("mail to {}: {}", mail.to, mail.text);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = QueueService::connect("memory:").await?;
    for (picture, owner) in [("cat.png", "ada@example.com"), ("dog.png", "nobody")] {
        let (picture, owner) = (picture.to_owned(), owner.to_owned());
        service
            .submit(Resize {
                picture,
                width: 300,
                owner,
            })
            .await?;
    }
    let mails = Route::new(send).poison_threshold(1); // no second attempt
    let router = service
        .router("tasks")?
        .handle(resize)
        .route(mails)
        .max_in_flight(1);
    let report = router.until_empty().start()?.drained().await.info;
    println!(
        "{} messages are completed, {} is poison",
        report.completed, report.poisoned
    );
    Ok(())
}
