//! A stub of Azure Queue Storage, over any backend: what the service answers, and 503 above a limit.
//!
//! The stub speaks the protocol as far as the engine for Azure does, and does not check who asks. An account is a stub
//! of its own, so a test may have several, and stop one.

mod load;
mod wire;

use std::io::{Error, Result};
use std::net::{Ipv4Addr, TcpListener as Bound};
use std::sync::{Arc, Mutex, PoisonError};

use queue_core::QueueName;
use queue_core::backend::Backend;
use queue_core::clock::Clock;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub use load::Load;
use load::Loads;

use crate::azurite::{KEY, lasting_port};
use crate::http::Message;

/// A stub of one account, which runs as tasks of the Tokio runtime that started it.
#[derive(Debug)]
pub struct AzureStub {
    account: Arc<Account>,
    port: u16,
    /// Ends all connections when aborted.
    serving: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Account {
    name: String,
    queues: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    /// The requests on a queue that are allowed within any second.
    limit: Option<usize>,
    loads: Mutex<Loads>,
}

impl AzureStub {
    /// Starts a stub of an account with these queues, on a free port of the loopback interface. If there is a limit, each
    /// request on a queue is answered with 503 for which there were as many within the second before it, by this clock.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(
        account: &str,
        queues: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        limit: Option<usize>,
    ) -> Result<Self> {
        let account = Account {
            name: account.to_owned(),
            queues,
            clock,
            limit,
            loads: Mutex::default(),
        };
        let mut stub = Self {
            account: Arc::new(account),
            port: lasting_port()?,
            serving: None,
        };
        stub.start_again()?;
        Ok(stub)
    }

    /// Returns a connection string, whose key is not checked.
    #[must_use]
    pub fn connection_string(&self) -> String {
        let (name, port) = (&self.account.name, self.port);
        format!("AccountName={name};AccountKey={KEY};QueueEndpoint=http://127.0.0.1:{port}/{name}")
    }

    /// Stops the account: ends its connections, and has it refuse others; its queues stay.
    pub async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // The listener is closed once the task has ended.
            let _ = serving.await;
        }
    }

    /// Starts the account again, after it was [stopped](Self::stop).
    ///
    /// # Errors
    /// If the account's port is taken.
    pub fn start_again(&mut self) -> Result<()> {
        let listener = Bound::bind((Ipv4Addr::LOCALHOST, self.port))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let serving = serve(listener, Arc::clone(&self.account));
        self.serving = Some(tokio::spawn(serving));
        Ok(())
    }

    /// Returns the requests on a queue so far.
    #[must_use]
    pub fn load(&self, queue: &QueueName) -> Load {
        self.account.loads().of(queue)
    }

    /// Returns the backend that has the queues.
    #[must_use]
    pub fn queues(&self) -> &Arc<dyn Backend> {
        &self.account.queues
    }
}

impl Drop for AzureStub {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }
}

async fn serve(listener: TcpListener, account: Arc<Account>) {
    let mut connections = JoinSet::new();
    while let Ok((connection, _)) = listener.accept().await {
        let account = Arc::clone(&account);
        // Fails when the client disconnects.
        connections.spawn(async move { account.converse(connection).await.ok() });
        while connections.try_join_next().is_some() {}
    }
}

impl Account {
    async fn converse(&self, mut connection: TcpStream) -> Result<()> {
        connection.set_nodelay(true)?;
        let (requests, mut answers) = connection.split();
        let mut requests = BufReader::new(requests);
        while let Some(request) = Message::read_async(&mut requests).await? {
            let answer = self.answer(&request).await?;
            answers.write_all(&answer.bytes(&[])).await?;
        }
        Ok(())
    }

    async fn answer(&self, request: &Message) -> Result<Message> {
        let request = wire::Request::read(request)
            .ok_or_else(|| Error::other(format!("not understood: {}", request.first)))?;
        if let Some(queue) = request.queue() {
            let now = self.clock.monotonic();
            if !self.loads().admits(queue, now, self.limit) {
                return Ok(wire::busy());
            }
        }
        Ok(request.carry_out(&*self.queues).await)
    }

    fn loads(&self) -> std::sync::MutexGuard<'_, Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
