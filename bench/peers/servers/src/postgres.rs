//! pgmq: one message at a time, or batches of 32.

use peer_harness::{
    Consume, Durability, Outcome, Parcel, Rates, Variant, Work, submit_with, take_with,
};
use pgmq::PGMQueueExt;
use sqlx::postgres::PgPoolOptions;
use sqlx::types::Json;
use sqlx::{Connection, PgConnection};

use crate::{CONNECTIONS, EACH};

/// Seconds.
const VISIBILITY: i32 = 30;
const BATCH: i32 = 32;

pub async fn list() -> [Variant; EACH] {
    let server = server().await;
    let settings = [
        ("one message at a time", Consume::Accept),
        ("batches of 32", Consume::AcceptMany),
    ];
    settings.map(|(settings, consume)| {
        let (server, durability, missing) = match &server {
            Ok((server, durability)) => (server.as_str(), *durability, None),
            Err(why) => ("PostgreSQL", Durability::Full, Some(why.to_string())),
        };
        Variant {
            name: format!("pgmq 0.33, {server}, {settings}"),
            durability,
            consume,
            at_most: 10_000,
            missing,
        }
    })
}

fn url() -> Result<String, String> {
    crate::url(&["PGMQ_URL", "DATABASE_URL"])
}

/// Its release and what its settings promise.
async fn server() -> Outcome<(String, Durability)> {
    let mut connection = PgConnection::connect(&url()?).await?;
    let mut show = async |name| {
        let show = format!("SHOW {name}");
        let shown: String = sqlx::query_scalar(&show).fetch_one(&mut connection).await?;
        Outcome::Ok(shown)
    };
    let release = show("server_version").await?;
    let release = release.split_whitespace().next().unwrap_or("?");
    let (fsync, commit) = (show("fsync").await?, show("synchronous_commit").await?);
    let durability = if fsync == "on" && commit != "off" {
        Durability::Full
    } else {
        Durability::Normal
    };
    let name = format!("PostgreSQL {release} (fsync={fsync}, synchronous_commit={commit})");
    Ok((name, durability))
}

pub async fn run(work: &Work, best: bool) -> Outcome<Rates> {
    let connections = work.tasks.min(CONNECTIONS);
    // `PGMQueueExt::new` refuses a URL without a password.
    let pool = PgPoolOptions::new().max_connections(connections);
    let queue = PGMQueueExt::new_with_pool(pool.connect(&url()?).await?).await;
    // The extension if the server has it, or its SQL in a schema.
    if queue.init().await.is_err() {
        queue.install_sql_from_embedded().await?;
    }
    let name = format!("bench_{}", std::process::id());
    queue.create(&name).await?;
    let rates = measure(&queue, &name, work, best).await;
    queue.drop_queue(&name).await?;
    rates
}

async fn measure(queue: &PGMQueueExt, name: &str, work: &Work, best: bool) -> Outcome<Rates> {
    let submit = {
        let (queue, name) = (queue.clone(), name.to_owned());
        move |number| {
            let (queue, name) = (queue.clone(), name.clone());
            async move {
                queue.send(&name, &Parcel::new(number)).await?;
                Ok(())
            }
        }
    };
    let take = {
        let (queue, name) = (queue.clone(), name.to_owned());
        move || {
            let (queue, name) = (queue.clone(), name.clone());
            async move {
                if best {
                    take_batch(&queue, &name).await
                } else {
                    take_one(&queue, &name).await
                }
            }
        }
    };
    Ok(Rates {
        submit: submit_with(work.messages, work.tasks, submit).await?,
        consume: take_with(work.messages, work.tasks, take).await?,
    })
}

async fn take_one(queue: &PGMQueueExt, name: &str) -> Outcome<u32> {
    let Some(message) = queue.read::<Parcel>(name, VISIBILITY).await? else {
        return Ok(0);
    };
    if queue.delete(name, message.msg_id).await? {
        Ok(1)
    } else {
        Err(format!("message {} was not deleted", message.msg_id).into())
    }
}

async fn take_batch(queue: &PGMQueueExt, name: &str) -> Outcome<u32> {
    // `PGMQueueExt` has no function for this that returns at once from an empty queue.
    let batch: Vec<(i64, Json<Parcel>)> =
        sqlx::query_as("SELECT msg_id, message FROM pgmq.read($1, $2, $3)")
            .bind(name)
            .bind(VISIBILITY)
            .bind(BATCH)
            .fetch_all(&queue.connection)
            .await?;
    if batch.is_empty() {
        return Ok(0);
    }
    let ids: Vec<i64> = batch.iter().map(|(id, _)| *id).collect();
    let deleted = queue.delete_batch(name, &ids).await?;
    if deleted == ids.len() {
        Ok(u32::try_from(deleted)?)
    } else {
        Err(format!("{deleted} of {} messages were deleted", ids.len()).into())
    }
}
