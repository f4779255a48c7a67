//! A proxy between a client and Azurite that does harm on the way, as its script says.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use queue_tests::azurite::KEY;
use queue_tests::http::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fault::{Call, Fault, harm};
use crate::server::{ACCOUNT, SERVER};

/// A request that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) call: Call,
    pub(crate) at: Instant,
    /// Whether the server was asked to carry it out.
    pub(crate) executed: bool,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    door: tokio::sync::Mutex<Door>,
}

/// The port is held all the time, so that nobody else gets it.
enum Door {
    /// Connections are refused.
    Closed(TcpSocket),
    Open(JoinHandle<()>),
    Moving,
}

struct Shared {
    script: Mutex<Script>,
    /// Changes with every request, and when an exchange ends.
    log: watch::Sender<Log>,
    /// Changes when connections are cut.
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

/// Long enough for the slowest machine; only a hang meets it.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

impl Proxy {
    /// A proxy that refuses connections until it is opened.
    pub(crate) fn closed() -> Self {
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = socket.local_addr().expect("bound");
        Self {
            shared: Arc::new(Shared {
                script: Mutex::default(),
                log: watch::Sender::default(),
                cut: watch::Sender::default(),
            }),
            address,
            door: tokio::sync::Mutex::new(Door::Closed(socket)),
        }
    }

    pub(crate) async fn open() -> Self {
        let proxy = Self::closed();
        proxy.admit().await;
        proxy
    }

    /// Accepts connections from now on.
    pub(crate) async fn admit(&self) {
        let mut door = self.door.lock().await;
        *door = match std::mem::replace(&mut *door, Door::Moving) {
            Door::Closed(socket) => {
                let listener = socket.listen(64).expect("listen");
                Door::Open(tokio::spawn(serve(listener, Arc::clone(&self.shared))))
            }
            other => other,
        };
    }

    /// Ends the connections that there are, which nobody may be using, and waits until the client has
    /// closed them too.
    pub(crate) async fn cut(&self) {
        let connections = std::mem::take(&mut self.shared.script().connections);
        self.shared.cut.send_replace(());
        let closed = tokio::time::timeout(GUARD, futures_util::future::join_all(connections));
        closed.await.expect("the client closes its ends");
    }

    /// Refuses connections from now on, and resets those that there are.
    pub(crate) async fn refuse(&self) {
        let mut door = self.door.lock().await;
        if let Door::Open(serving) = std::mem::replace(&mut *door, Door::Moving) {
            serving.abort();
            // It was aborted, and the listener is gone once that is known.
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
        *door = Door::Closed(socket);
    }

    /// Harms the next calls of a kind, one after the other.
    pub(crate) fn script(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        let mut script = self.shared.script();
        script.once.entry(call).or_default().extend(faults);
    }

    /// Harms every call, or none, that has no fault of its own.
    pub(crate) fn always(&self, fault: Option<Fault>) {
        self.shared.script().always = fault;
    }

    /// The requests of a kind that came.
    pub(crate) fn seen(&self, call: Call) -> Vec<Seen> {
        let log = self.shared.log.borrow();
        let seen = log.seen.iter().filter(|seen| seen.call == call);
        seen.copied().collect()
    }

    /// Waits until the log is as wanted.
    pub(crate) async fn until(&self, wanted: impl FnMut(&Log) -> bool) {
        let mut log = self.shared.log.subscribe();
        let waited = tokio::time::timeout(GUARD, log.wait_for(wanted)).await;
        waited.expect("in time").expect("the proxy is here");
    }

    /// Waits until every request has come to its end, whatever became of the client.
    pub(crate) async fn at_rest(&self) {
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

    /// Deals with one request; says whether the connection goes on.
    async fn exchange(&self, request: &Message, client: &mut TcpStream) -> io::Result<bool> {
        let call = Call::of(request);
        let fault = self.fault(call).and_then(|fault| fault.due(request));
        let executed = fault.as_ref().is_none_or(Fault::lets_through);
        let at = Instant::now();
        self.log
            .send_modify(|log| log.seen.push(Seen { call, at, executed }));
        let _ended = Ended(&self.log);
        let answer = match executed {
            true => Some(request.forward(SERVER.queue_port()).await?),
            false => None,
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
        harm(fault, answer, client).await
    }
}

/// Notes the end of an exchange, however it ends.
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
            // The client may be gone, which is its right.
            let _ = converse(client, &handed).await;
        });
        shared.script().connections.push(connection);
    }
}

async fn converse(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    // Whatever ends a conversation resets it: a client must not take an end for a whole answer.
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
