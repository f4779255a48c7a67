//! Takes orders over HTTP, handles them, answers health checks, and stops on SIGTERM or Ctrl-C.
//!
//! ```sh
//! cargo run -p web
//! curl -i -H 'content-type: application/json' -d '{"number": 7}' http://127.0.0.1:3000/orders
//! curl -i http://127.0.0.1:3000/readyz
//! ```
//!
//! The queues are in `web.db`, or where `QUEUE_URL` says; the address is 127.0.0.1:3000, or what `ADDRESS` says.

use std::env;
use std::future::IntoFuture as _;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use queue_runtime::service::StopSignals;
use queue_runtime::{Message, QueueService, Received};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long a client that stalls is waited for after the signal.
const CLIENTS: Duration = Duration::from_secs(5);

/// How long handlers may go on after the server's end.
const HANDLERS: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize, Message)]
struct Order {
    number: u64,
}

async fn ship(order: Received<Order>) {
    println!("shipped order {}", order.number);
}

/// Stores an order, which is handled later.
async fn order(State(service): State<QueueService>, Json(order): Json<Order>) -> StatusCode {
    match service.submit(order).await {
        Ok(_) => StatusCode::ACCEPTED,
        Err(error) => {
            eprintln!("{error}");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// Liveness: whether a restart would help.
async fn healthz(State(service): State<QueueService>) -> (StatusCode, String) {
    let health = service.health();
    (status(!health.needs_restart()), health.to_string())
}

/// Readiness: whether the listeners receive, and what is wrong if not.
async fn readyz(State(service): State<QueueService>) -> (StatusCode, String) {
    let health = service.health();
    (status(health.is_healthy()), health.to_string())
}

fn status(is_fine: bool) -> StatusCode {
    if is_fine {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("QUEUE_URL").unwrap_or_else(|_| "sqlite:web.db".to_owned());
    let mut signals = StopSignals::new()?;
    let service = tokio::select! {
        connected = QueueService::connect(&url) => connected?,
        _ = signals.next() => return Ok(()),
    };
    service.listener(ship).start()?;

    let app = Router::new()
        .route("/orders", post(order))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(service.clone());
    let address = env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let socket = TcpListener::bind(&address).await?;
    println!("listening on http://{}", socket.local_addr()?);

    // The server stops first, because its requests submit messages. A stalled client is waited for for a while.
    let (stop, mut stopped) = watch::channel(());
    let mut late = stop.subscribe();
    let server = axum::serve(socket, app).with_graceful_shutdown(async move {
        drop(stopped.changed().await);
    });
    let no_longer = async {
        drop(late.changed().await);
        tokio::time::sleep(CLIENTS).await;
    };
    let stopping = async {
        let served = tokio::select! {
            served = server.into_future() => served,
            () = no_longer => Ok(()),
        };
        (served, service.shutdown(HANDLERS).await)
    };
    let again = async {
        signals.next().await;
        stop.send_replace(());
        signals.next().await;
    };
    let (served, report) = tokio::select! {
        stopped = stopping => stopped,
        // Another signal ends the time of clients and handlers.
        () = again => (Ok(()), service.shutdown(Duration::ZERO).await),
    };
    println!("stopped; {} orders were handed back", report.released());
    Ok(served?)
}
