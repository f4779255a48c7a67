//! Queues on servers: pgmq on PostgreSQL, omniqueue on Redis.
//!
//! `PGMQ_URL` or `DATABASE_URL` names a PostgreSQL database in which the role may create schemas, and `REDIS_URL`
//! a Redis server. What is created there is deleted at the end.

mod postgres;
mod streams;

use peer_harness::{Outcome, Rates, Variant, Work};

/// The variants of a server: the same number for each.
const EACH: usize = 2;

/// No more connections than a server accepts with its default settings.
const CONNECTIONS: u32 = 32;

fn main() -> Outcome<()> {
    peer_harness::main(list, run)
}

async fn list() -> Vec<Variant> {
    let [postgres, streams] = [postgres::list().await, streams::list().await];
    postgres.into_iter().chain(streams).collect()
}

async fn run(work: &Work) -> Outcome<Rates> {
    let best = work.variant % EACH == 1;
    match work.variant / EACH {
        0 => postgres::run(work, best).await,
        _ => streams::run(work, best).await,
    }
}

fn url(variables: &[&str]) -> Result<String, String> {
    let found = variables.iter().find_map(|name| std::env::var(name).ok());
    found.ok_or_else(|| format!("{} is not set", variables.join(" or ")))
}
