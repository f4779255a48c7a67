//! A proxy between a client and Azurite that injects scripted faults.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use queue_tests::azurite::{Azurite, KEY};
use queue_tests::http::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fault::{Call, Fault, inject};
use crate::server::ACCOUNT;

/// A request that the proxy received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) call: Call,
    pub(crate) at: Instant,
    /// Whether it was forwarded to the server.
    pub(crate) executed: bool,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    port: tokio::sync::Mutex<Port>,
}

/// The port stays bound, so that no other process gets it.
enum Port {
    /// Connections are refused.
    Closed(TcpSocket),
    Open(JoinHandle<()>),
    Changing,
}

struct Shared {
    server: &'static Azurite,
    script: Mutex<Script>,
    /// Changes with every request, and when its exchange ends.
    log: watch::Sender<Log>,
    /// Changes when [`Proxy::cut`] closes the connections.
    cut: watch::Sender<()>,
}

#[derive(Default)]
struct Script {
    once: HashMap<Call, VecDeque<Fault>>,
    always: Option<Fault>,
    connections: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Log {
    pub(crate) seen: Vec<Seen>,
    ended: usize,
}

/// A timeout that only a hang reaches, on the slowest machine too.
pub(crate) const GUARD: Duration = Duration::from_secs(300);

impl Proxy {
    /// Creates a proxy that refuses connections.
    pub(crate) fn closed(server: &'static Azurite) -> Self {
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = socket.local_addr().expect("bound");
        Self {
            shared: Arc::new(Shared {
                server,
                script: Mutex::default(),
                log: watch::Sender::default(),
                cut: watch::Sender::default(),
            }),
            address,
            port: tokio::sync::Mutex::new(Port::Closed(socket)),
        }
    }

    pub(crate) async fn open(server: &'static Azurite) -> Self {
        let proxy = Self::closed(server);
        proxy.accept_connections().await;
        proxy
    }

    /// Starts to accept connections.
    pub(crate) async fn accept_connections(&self) {
        let mut port = self.port.lock().await;
        *port = match std::mem::replace(&mut *port, Port::Changing) {
            Port::Closed(socket) => {
                let listener = socket.listen(64).expect("listen");
                Port::Open(tokio::spawn(serve(listener, Arc::clone(&self.shared))))
            }
            other => other,
        };
    }

    /// Closes all connections, which must be idle, and waits until the client has closed them too.
    pub(crate) async fn cut(&self) {
        let connections = std::mem::take(&mut self.shared.script().connections);
        self.shared.cut.send_replace(());
        let closed = tokio::time::timeout(GUARD, futures_util::future::join_all(connections));
        closed.await.expect("the client closes its ends");
    }

    /// Starts to refuse connections, and resets the open ones.
    pub(crate) async fn refuse_connections(&self) {
        let mut port = self.port.lock().await;
        if let Port::Open(serving) = std::mem::replace(&mut *port, Port::Changing) {
            serving.abort();
            // The listener is closed once the aborted task has ended.
            let _ = serving.await;
        }
        let connections = std::mem::take(&mut self.shared.script().connections);
        for connection in connections {
            connection.abort();
            let _ = connection.await;
        }
        let socket = loop {
            match bind(self.address) {
                Ok(socket) => break socket,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        *port = Port::Closed(socket);
    }

    /// Injects these faults into the next calls of a kind, one into each.
    pub(crate) fn script(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        let mut script = self.shared.script();
        script.once.entry(call).or_default().extend(faults);
    }

    /// Sets the fault of every call without a scripted one.
    pub(crate) fn always(&self, fault: Option<Fault>) {
        self.shared.script().always = fault;
    }

    /// Returns the requests of a kind.
    pub(crate) fn seen(&self, call: Call) -> Vec<Seen> {
        let log = self.shared.log.borrow();
        let seen = log.seen.iter().filter(|seen| seen.call == call);
        seen.copied().collect()
    }

    /// Waits until the log fulfils a condition.
    pub(crate) async fn until(&self, wanted: impl FnMut(&Log) -> bool) {
        let mut log = self.shared.log.subscribe();
        let waited = tokio::time::timeout(GUARD, log.wait_for(wanted)).await;
        waited.expect("in time").expect("the proxy exists");
    }

    /// Waits until every exchange has ended, even if the client has given up.
    pub(crate) async fn idle(&self) {
        self.until(|log| log.ended == log.seen.len()).await;
    }

    pub(crate) fn connection_string(&self) -> String {
        format!(
            "AccountName={ACCOUNT};AccountKey={KEY};QueueEndpoint=http://{}/{ACCOUNT}",
            self.address
        )
    }
}

impl Shared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let mut script = self.script();
        let once = script.once.get_mut(&call).and_then(VecDeque::pop_front);
        once.or_else(|| script.always.clone())
    }

    /// Handles one request. Returns whether the connection stays open.
    async fn exchange(&self, request: &Message, client: &mut TcpStream) -> io::Result<bool> {
        let call = Call::of(request);
        let fault = self.fault(call).and_then(|fault| fault.due(request));
        let executed = fault.as_ref().is_none_or(Fault::executes);
        let at = Instant::now();
        self.log
            .send_modify(|log| log.seen.push(Seen { call, at, executed }));
        let _ended = Ended(&self.log);
        let answer = if executed {
            Some(request.forward(self.server.queue_port()).await?)
        } else {
            None
        };
        let fault = match (fault, &answer) {
            (Some(Fault::LoseMessages), Some(answer)) if !holds_messages(answer) => {
                let mut script = self.script();
                let once = script.once.entry(call).or_default();
                once.push_front(Fault::LoseMessages);
                None
            }
            (fault, _) => fault,
        };
        inject(fault, answer, client).await
    }
}

/// Records the end of an exchange, also when its task is aborted.
struct Ended<'a>(&'a watch::Sender<Log>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|log| log.ended += 1);
    }
}

/// Whether an answer holds messages of a queue.
fn holds_messages(answer: &Message) -> bool {
    let name = b"<MessageId>";
    answer.body.windows(name.len()).any(|part| part == name)
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let handed = Arc::clone(&shared);
        let connection = tokio::spawn(async move {
            // Fails if the client has closed the connection, as some tests make it do.
            let _ = converse(client, &handed).await;
        });
        shared.script().connections.push(connection);
    }
}

async fn converse(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    // Dropping the connection resets it: the client must not take its end for that of an answer.
    client.set_zero_linger()?;
    let mut cut = shared.cut.subscribe();
    let mut reader = BufReader::new(client);
    loop {
        let request = tokio::select! {
            request = Message::read_async(&mut reader) => request?,
            _ = cut.changed() => {
                reader.get_mut().shutdown().await?;
                return reader.read_to_end(&mut Vec::new()).await.map(drop);
            }
        };
        let Some(request) = request else {
            return Ok(());
        };
        if !shared.exchange(&request, reader.get_mut()).await? {
            return Ok(());
        }
    }
}
