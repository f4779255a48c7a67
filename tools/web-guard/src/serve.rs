//! Connections, of which other users of this machine must not use up this program's.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The greatest number of open connections. Others wait until one is closed.
const MAX_CONNECTIONS: usize = 128;
/// The longest time in which the head of a request must arrive, also while a connection is idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted, because the system is short of something.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves pages by HTTP/1.1 until it is dropped, which closes all connections. Up to 128 may be open; one on which no request
/// arrives for ten seconds is closed.
pub async fn serve(listener: TcpListener, pages: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut open = JoinSet::new();
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
        let service = TowerToHyperService::new(pages.clone());
        open.spawn(async move {
            let _place = place;
            let mut connection = http1::Builder::new();
            let connection = connection
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT);
            if let Err(error) = connection.serve_connection(stream, service).await {
                tracing::debug!(%error, "a connection has ended");
            }
        });
    }
}
