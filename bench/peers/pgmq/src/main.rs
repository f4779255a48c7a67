//! pgmq: one message at a time, or batches of 32.

use peer_harness::{
    CONNECTIONS, Consume, Durability, Outcome, Parcel, Rates, Variant, Work, all_done, submit_with,
    take_with,
};
use pgmq::PGMQueueExt;
use sqlx::postgres::PgPoolOptions;
use sqlx::types::Json;

const QUEUE: &str = "bench";
/// Seconds.
const VISIBILITY: i32 = 30;
const BATCH: i32 = 32;

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    let settings = [
        ("one message at a time", Consume::Accept),
        ("batches of 32", Consume::AcceptMany),
    ];
    let variants = settings.map(|(settings, consume)| Variant {
        name: format!("pgmq 0.33, {settings}"),
        durability: Durability::Full,
        consume,
        at_most: 10_000,
        missing: None,
    });
    variants.into()
}

async fn run(work: &Work) -> Outcome<Rates> {
    // `PGMQueueExt::new` refuses a URL without a password.
    let pool = PgPoolOptions::new().max_connections(work.tasks.min(CONNECTIONS));
    let pool = pool.connect(&peer_harness::database()?).await?;
    let queue = PGMQueueExt::new_with_pool(pool).await;
    // The extension if the server has it, or its SQL in a schema.
    if queue.init().await.is_err() {
        queue.install_sql_from_embedded().await?;
    }
    queue.create(QUEUE).await?;
    let rates = measure(&queue, work).await?;
    let left = sqlx::query_scalar("SELECT count(*) FROM pgmq.q_bench");
    all_done(work.messages, left.fetch_one(&queue.connection).await?)?;
    Ok(rates)
}

async fn measure(queue: &PGMQueueExt, work: &Work) -> Outcome<Rates> {
    let submit = {
        let queue = queue.clone();
        move |number| {
            let queue = queue.clone();
            async move {
                queue.send(QUEUE, &Parcel::new(number)).await?;
                Ok(())
            }
        }
    };
    let in_batches = work.variant == 1;
    let take = {
        let queue = queue.clone();
        move || {
            let queue = queue.clone();
            async move {
                if in_batches {
                    take_batch(&queue).await
                } else {
                    take_one(&queue).await
                }
            }
        }
    };
    Ok(Rates {
        submit: submit_with(work.messages, work.tasks, submit).await?,
        consume: take_with(work.messages, work.tasks, take).await?,
    })
}

async fn take_one(queue: &PGMQueueExt) -> Outcome<u32> {
    let Some(message) = queue.read::<Parcel>(QUEUE, VISIBILITY).await? else {
        return Ok(0);
    };
    if queue.delete(QUEUE, message.msg_id).await? {
        Ok(1)
    } else {
        Err(format!("message {} was not deleted", message.msg_id).into())
    }
}

async fn take_batch(queue: &PGMQueueExt) -> Outcome<u32> {
    // `PGMQueueExt` has no function for this that returns at once from an empty queue.
    let batch: Vec<(i64, Json<Parcel>)> =
        sqlx::query_as("SELECT msg_id, message FROM pgmq.read($1, $2, $3)")
            .bind(QUEUE)
            .bind(VISIBILITY)
            .bind(BATCH)
            .fetch_all(&queue.connection)
            .await?;
    if batch.is_empty() {
        return Ok(0);
    }
    let ids: Vec<i64> = batch.iter().map(|(id, _)| *id).collect();
    let deleted = queue.delete_batch(QUEUE, &ids).await?;
    if deleted == ids.len() {
        Ok(u32::try_from(deleted)?)
    } else {
        Err(format!("{deleted} of {} messages were deleted", ids.len()).into())
    }
}
