//! omniqueue on Redis streams: one message at a time, or batches of 32 that are acknowledged concurrently.
//!
//! `REDIS_URL` names a Redis server. What is created there is deleted at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use omniqueue::backends::redis::{RedisBackend, RedisConfig};
use omniqueue::{Delivery, QueueConsumer, QueueProducer};
use peer_harness::{
    CONNECTIONS, Consume, Durability, Outcome, Parcel, Rates, Variant, Work, all_taken, submit_with,
};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

const GROUP: &str = "bench";
const BATCH: usize = 32;

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    let server = server().await;
    let settings = [
        ("one message at a time", Consume::Accept),
        ("batches of 32", Consume::AcceptMany),
    ];
    let variants = settings.map(|(settings, consume)| {
        let (server, durability, missing) = match &server {
            Ok((server, durability)) => (server.as_str(), *durability, None),
            Err(why) => ("Redis", Durability::Normal, Some(why.to_string())),
        };
        Variant {
            name: format!("omniqueue 0.3, {server}, {settings}"),
            durability,
            consume,
            at_most: 20_000,
            missing,
        }
    });
    variants.into()
}

fn url() -> Result<String, &'static str> {
    std::env::var("REDIS_URL").map_err(|_| "REDIS_URL is not set")
}

async fn connect() -> Outcome<MultiplexedConnection> {
    let client = redis::Client::open(url()?)?;
    Ok(client.get_multiplexed_async_connection().await?)
}

/// Its release and what its settings promise.
async fn server() -> Outcome<(String, Durability)> {
    let mut connection = connect().await?;
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connection)
        .await?;
    let release = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    let mut setting = async |name: &str| {
        let pair: Vec<String> = redis::cmd("CONFIG")
            .arg("GET")
            .arg(name)
            .query_async(&mut connection)
            .await?;
        Outcome::Ok(pair.into_iter().nth(1).unwrap_or_default())
    };
    let (saved, sync) = (setting("appendonly").await?, setting("appendfsync").await?);
    let durability = if saved == "yes" && sync == "always" {
        Durability::Full
    } else {
        Durability::Normal
    };
    let release = release.unwrap_or("?").trim();
    let name = format!("Redis {release} (appendonly={saved}, appendfsync={sync})");
    Ok((name, durability))
}

async fn run(work: &Work) -> Outcome<Rates> {
    let key = format!("bench:{}", std::process::id());
    let mut connection = connect().await?;
    let _: () = redis::cmd("XGROUP")
        .arg(&["CREATE", &key, GROUP, "0", "MKSTREAM"])
        .query_async(&mut connection)
        .await?;
    let rates = measure(&key, work, work.variant == 1).await;
    let _: () = redis::cmd("DEL")
        .arg(&key)
        .query_async(&mut connection)
        .await?;
    rates
}

async fn measure(key: &str, work: &Work, best: bool) -> Outcome<Rates> {
    let producer = RedisBackend::builder(config(key, 0, CONNECTIONS)?);
    let submit = submit(producer.build_producer().await?, work).await?;
    let (count, connections) = if best {
        (1, CONNECTIONS)
    } else {
        // More than one each, because the background tasks need connections, too.
        (work.tasks.min(CONNECTIONS), 4)
    };
    let mut consumers = Vec::new();
    for number in 0..count {
        let consumer = RedisBackend::builder(config(key, number, connections)?);
        consumers.push(consumer.build_consumer().await?);
    }
    Ok(Rates {
        submit,
        consume: consume(consumers, work.messages, best).await?,
    })
}

fn config(key: &str, consumer: u32, connections: u32) -> Outcome<RedisConfig> {
    Ok(RedisConfig {
        dsn: url()?,
        max_connections: u16::try_from(connections)?,
        reinsert_on_nack: false,
        queue_key: key.to_owned(),
        delayed_queue_key: format!("{key}:delayed"),
        delayed_lock_key: format!("{key}:lock"),
        consumer_group: GROUP.to_owned(),
        consumer_name: format!("bench-{consumer}"),
        payload_key: "payload".to_owned(),
        ack_deadline_ms: 30_000,
        dlq_config: None,
        sentinel_config: None,
    })
}

async fn submit(producer: impl QueueProducer + 'static, work: &Work) -> Outcome<f64> {
    let producer = Arc::new(producer);
    submit_with(work.messages, work.tasks, move |number| {
        let producer = Arc::clone(&producer);
        async move {
            producer.send_serde_json(&Parcel::new(number)).await?;
            Ok(())
        }
    })
    .await
}

/// Every consumer takes messages until all are taken.
async fn consume(
    consumers: Vec<impl QueueConsumer + 'static>,
    messages: u32,
    best: bool,
) -> Outcome<f64> {
    let taken = Arc::new(AtomicU32::new(0));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for mut consumer in consumers {
        let taken = Arc::clone(&taken);
        running.spawn(async move {
            while taken.load(Ordering::Acquire) < messages {
                let count = if best { BATCH } else { 1 };
                // The deadline ends the consumers that find no more messages.
                let deliveries = consumer
                    .receive_all(count, Duration::from_millis(10))
                    .await?;
                let mut acknowledged = JoinSet::new();
                for delivery in deliveries {
                    acknowledged.spawn(acknowledge(delivery));
                }
                while let Some(ended) = acknowledged.join_next().await {
                    ended??;
                    taken.fetch_add(1, Ordering::AcqRel);
                }
            }
            Outcome::Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    all_taken(messages, taken.load(Ordering::Acquire), started)
}

async fn acknowledge(delivery: Delivery) -> Outcome<()> {
    let parcel: Option<Parcel> = delivery.payload_serde_json()?;
    parcel.ok_or("a message without a payload")?;
    delivery.ack().await.map_err(|(error, _)| error.into())
}
