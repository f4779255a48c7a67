//! Connections, of which other users of this machine must not use up this program's.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The greatest number of open connections; others wait until one is closed.
const MAX_CONNECTIONS: usize = 128;
/// The longest time in which the head of a request must arrive, also while a connection is idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted, because the system is short of something.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest time for which a stop waits for answers in progress.
const GRACE: Duration = Duration::from_secs(5);

/// Serves pages by HTTP/1.1 until `stopped` is ready. Up to 128 connections may be open; a connection on which no
/// request arrives for ten seconds is closed.
///
/// Answers that are in progress at the stop are finished, for up to five seconds: end streams that have no end by
/// themselves. No handler runs any more when `serve` returns.
///
/// # Cancel safety
/// Dropping the future closes all connections at once.
pub async fn serve(listener: TcpListener, pages: Router, stopped: impl Future<Output = ()>) {
    let mut open = JoinSet::new();
    let stopping = GracefulShutdown::new();
    tokio::select! {
        () = accept(listener, pages, &mut open, &stopping) => {}
        () = stopped => {}
    }
    if timeout(GRACE, stopping.shutdown()).await.is_err() {
        tracing::warn!("answers are not finished after {GRACE:?}; their connections are closed");
    }
    open.shutdown().await;
}

async fn accept(
    listener: TcpListener,
    pages: Router,
    open: &mut JoinSet<()>,
    stopping: &GracefulShutdown,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let accepted = listener.accept().await;
        while open.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => TokioIo::new(stream),
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection; will try again");
                sleep(PAUSE).await;
                continue;
            }
        };
        let mut connection = http1::Builder::new();
        let connection = connection
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(stream, TowerToHyperService::new(pages.clone()));
        let connection = stopping.watch(connection);
        open.spawn(async move {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection has ended");
            }
        });
    }
}
