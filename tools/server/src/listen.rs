//! Connections: how many, with or without TLS, bounds on the heads of requests, the stop.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::account::Account;
use crate::observe;
use crate::request::{Answers, Peer};
use crate::tls::Tls;

/// How long a client may take to send the head of a request, which is also how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(60);

/// How long a client may take to agree on the encryption of a connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long answers that are under way may take once the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// How long nothing is accepted after the system has refused a connection.
const PAUSE: Duration = Duration::from_millis(100);

const MAX_HEADERS: usize = 100;
const MAX_HEAD: usize = 32 * 1024;
/// Each may have a body under way.
const CONNECTIONS: usize = 2_048;

/// A server that runs in a task. Dropping it ends all connections.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinSet<io::Result<()>>,
}

impl Running {
    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server once the requests that have begun are answered, for 10 seconds at most.
    ///
    /// # Errors
    /// If the server has failed.
    pub async fn stop(mut self) -> io::Result<()> {
        // Fails if the server has ended already.
        let _ = self.stop.send(());
        match self.serving.join_next().await {
            Some(Ok(served)) => served,
            Some(Err(error)) => Err(io::Error::other(error)),
            None => Ok(()),
        }
    }
}

/// A server of some accounts.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use queue_core::{backend::Backend, clock::Clock};
/// # async fn serve(queues: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Result<(), Box<dyn std::error::Error>> {
/// use queue_server::{Account, DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Server};
/// use tokio::net::TcpListener;
///
/// let account = Account::new(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, queues, clock)?;
/// let listener = TcpListener::bind("127.0.0.1:10001").await?;
/// Server::new(vec![account]).serve(listener, std::future::pending()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Server {
    answers: Arc<Answers>,
    tls: Option<Tls>,
}

impl Server {
    /// Creates a server of these accounts.
    #[must_use]
    pub fn new(accounts: Vec<Account>) -> Self {
        Self {
            answers: Arc::new(Answers::new(accounts)),
            tls: None,
        }
    }

    /// Has the server speak TLS only, with this chain of certificates and this key, both in PEM.
    ///
    /// # Errors
    /// What is wrong with the certificates or the key.
    #[cfg(feature = "tls")]
    pub fn with_tls(mut self, certificates: &[u8], key: &[u8]) -> Result<Self, String> {
        self.tls = Some(Tls::new(certificates, key)?);
        Ok(self)
    }

    /// Answers requests until `stop` completes, and then finishes those that have begun, for 10 seconds at most.
    ///
    /// # Errors
    /// If the address of the listener cannot be read.
    ///
    /// # Cancel safety
    /// Dropping the future ends all connections.
    pub async fn serve(
        &self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let address = listener.local_addr()?;
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        let (graceful, mut stop) = (GracefulShutdown::new(), std::pin::pin!(stop));
        loop {
            let accept = async {
                let place = Arc::clone(&places).acquire_owned().await;
                let place = place.expect("the semaphore is never closed");
                (listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                accepted = accept => accepted,
                () = &mut stop => break,
            };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (server, watcher) = (self.clone(), graceful.watcher());
            connections.spawn(async move {
                let _open = observe::connection();
                if let Err(error) = server.converse(stream, client, address, watcher).await {
                    tracing::debug!(%client, %error, "a connection has ended");
                }
                drop(place);
            });
            while let Some(ended) = connections.try_join_next() {
                log_panic(ended);
            }
        }
        drop(listener);
        if timeout(GRACE, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests that had begun were not answered before the server stopped");
        }
        Ok(())
    }

    /// Serves in a task of its own, as for the tests of a program that uses the service.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use queue_core::{ManualClock, backend::Backend};
    /// use queue_server::{Account, Server};
    /// use tokio::net::TcpListener;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = Arc::new(ManualClock::new());
    /// # let queues = Arc::new(queue_runtime::backend::MemoryBackend::new(clock.clone()));
    /// let account = Account::new("shop", "a2V5IG9mIHRoZSBzaG9w", queues, clock)?;
    /// let server = Server::new(vec![account]).start(TcpListener::bind("127.0.0.1:0").await?)?;
    /// let endpoint = format!("http://{}/shop", server.address());
    /// // … the tests …
    /// server.stop().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the address of the listener cannot be read.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn start(&self, listener: TcpListener) -> io::Result<Running> {
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = self.clone();
        let stopped = async {
            // Also when the sender is dropped.
            let _ = stopped.await;
        };
        let mut serving = JoinSet::new();
        serving.spawn(async move { server.serve(listener, stopped).await });
        Ok(Running {
            address,
            stop,
            serving,
        })
    }

    async fn converse(
        &self,
        stream: TcpStream,
        client: SocketAddr,
        server: SocketAddr,
        watcher: Watcher,
    ) -> io::Result<()> {
        // Only delays answers.
        let _ = stream.set_nodelay(true);
        let peer = Peer {
            client,
            server,
            is_encrypted: self.tls.is_some(),
        };
        let ended = match &self.tls {
            None => watcher.watch(self.connection(stream, peer)).await,
            Some(tls) => {
                let stream = timeout(HANDSHAKE, tls.accept(stream)).await??;
                watcher.watch(self.connection(stream, peer)).await
            }
        };
        ended.map_err(io::Error::other)
    }

    /// Answers the requests of a connection that was accepted elsewhere, until it ends.
    ///
    /// # Errors
    /// If the connection does not end between two requests.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection.
    pub async fn serve_connection(
        &self,
        connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) -> io::Result<()> {
        let ended = self.connection(connection, peer).await;
        ended.map_err(io::Error::other)
    }

    fn connection<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        connection: C,
        peer: Peer,
    ) -> impl GracefulConnection<Error = hyper::Error> + use<C> {
        let answers = Arc::clone(&self.answers);
        let answer = move |request| {
            let answers = Arc::clone(&answers);
            async move { Ok::<_, Infallible>(answers.answer(request, peer).await) }
        };
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(connection), service_fn(answer))
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a connection has failed");
    }
}
