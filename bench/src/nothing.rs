//! The server over an engine that stores nothing: what the server costs without its storage.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use queue_runtime::backend::{
    ApplyError, Backend, Capabilities, Created, Lease, Metadata, NewMessage, Op, OpOutcome,
    OpOutcomes, Ops, PeekedMessage, PopReceipt, PutReceipt, QueueProperties, ReceivedMessage,
    StorageId, TimeToLive,
};
use queue_runtime::clock::{Clock, SystemClock};
use queue_runtime::{QueueName, Result, Timestamp};
use queue_server::{Account, Server};
use queue_tests::azurite::KEY;
use tokio::net::TcpListener;

use crate::loopback::ACCOUNT;
use crate::serving::LISTENS;
use crate::{Outcome, runtime};

/// The id and the receipt of every message, as long as those of Azure: making some would cost more than all else here.
const ID: &str = "5974b586-0df3-4e2d-ad0c-000000000000";
const RECEIPT: &str = "AgAAAAMAAAAAAAAA5jsJYV0B3AE=";

/// Serves on a free port until the input ends, on the same runtime as `queues serve`.
pub(crate) fn serve() -> Outcome<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let account = Account::new(ACCOUNT, KEY, Arc::new(Nothing::new()), clock)?;
    runtime()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{LISTENS}{}", listener.local_addr()?.port());
        let stop = async {
            let ends = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            drop(tokio::task::spawn_blocking(ends).await);
        };
        Ok(Server::new(vec![account]).serve(listener, stop).await?)
    })
}

/// One queue under any name. It acknowledges at once, and counts; each message that is received has the body of the last
/// one put.
#[derive(Debug)]
struct Nothing {
    capabilities: Capabilities,
    left: AtomicUsize,
    body: Mutex<Bytes>,
}

impl Nothing {
    fn new() -> Self {
        let mut capabilities = Capabilities::local();
        capabilities.max_body = queue_azure_wire::MAX_TEXT;
        Self {
            capabilities,
            left: AtomicUsize::new(0),
            body: Mutex::default(),
        }
    }

    fn put(&self, message: NewMessage) -> PutReceipt {
        let now = Timestamp::now();
        let (id, receipt) = (StorageId::new(ID), PopReceipt::new(RECEIPT));
        let mut put = PutReceipt::new(id, receipt, now, now);
        put.expires_at = match message.time_to_live {
            TimeToLive::Never => None,
            TimeToLive::After(life) => now.checked_add(life).ok(),
        };
        *self.body.lock().unwrap_or_else(PoisonError::into_inner) = message.body;
        self.left.fetch_add(1, Relaxed);
        put
    }
}

#[async_trait]
impl Backend for Nothing {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queue_uri(&self, queue: &QueueName) -> String {
        format!("nothing:{queue}")
    }

    async fn create_queue(&self, _: &QueueName, _: &Metadata) -> Result<Created> {
        Ok(Created::New)
    }

    async fn delete_queue(&self, _: &QueueName) -> Result<()> {
        Ok(())
    }

    async fn list_queues(&self, _: &str) -> Result<Vec<QueueName>> {
        Ok(Vec::new())
    }

    async fn properties(&self, _: &QueueName) -> Result<QueueProperties> {
        let left = self.left.load(Relaxed);
        Ok(QueueProperties::new(Metadata::new(), left))
    }

    async fn set_metadata(&self, _: &QueueName, _: &Metadata) -> Result<()> {
        Ok(())
    }

    async fn receive(
        &self,
        _: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<ReceivedMessage>> {
        let take = |left: usize| Some(left - left.min(max));
        let left = self.left.fetch_update(Relaxed, Relaxed, take);
        let received = left.unwrap_or_default().min(max);
        let body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        let body = body.clone();
        let now = Timestamp::now();
        let message = |_| {
            let (id, receipt) = (StorageId::new(ID), PopReceipt::new(RECEIPT));
            let mut message = ReceivedMessage::new(id, receipt, body.clone(), now, now);
            message.visible_at = now.checked_add(visibility).unwrap_or(now);
            message
        };
        Ok((0..received).map(message).collect())
    }

    async fn peek(&self, _: &QueueName, _: usize) -> Result<Vec<PeekedMessage>> {
        Ok(Vec::new())
    }

    async fn clear(&self, _: &QueueName) -> Result<()> {
        self.left.store(0, Relaxed);
        Ok(())
    }

    async fn apply(&self, ops: Ops) -> Result<OpOutcomes, ApplyError> {
        let outcome = |op| match op {
            Op::Put { message, .. } => OpOutcome::Put(self.put(message)),
            Op::Renew { receipt, .. } | Op::PutBack { receipt, .. } => {
                OpOutcome::Updated(Lease::new(receipt, Timestamp::now()))
            }
            Op::Swap { .. } => OpOutcome::Swapped,
            _ => OpOutcome::Deleted,
        };
        Ok(ops.into_iter().map(outcome).collect())
    }
}
