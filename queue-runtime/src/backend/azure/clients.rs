//! One pool of connections for each runtime.
//!
//! A connection is driven by the runtime that opened it. Were the pool shared, a renewal on the
//! service's own thread could wait for a connection of the application's runtime, whose workers a
//! handler may block for as long as it likes; and the end of one runtime would break the calls of
//! another.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use super::account::EndpointKind;

/// More runtimes than a program has; what is over may be runtimes that have ended.
const MOST: usize = 8;

/// Less than the 5 s after which Azurite closes an idle connection, perhaps just as it is used.
const EMULATOR_IDLE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Clients {
    connect_timeout: Duration,
    kind: EndpointKind,
    open: Mutex<Vec<(Id, reqwest::Client)>>,
}

impl Clients {
    pub(super) fn new(connect_timeout: Duration, kind: EndpointKind) -> Self {
        Self {
            connect_timeout,
            kind,
            open: Mutex::default(),
        }
    }

    /// The client of the runtime that this is called on.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as every use of its timers and sockets does.
    pub(super) fn here(&self) -> reqwest::Result<reqwest::Client> {
        let runtime = Handle::current().id();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = open.iter().find(|(id, _)| *id == runtime) {
            return Ok(client.clone());
        }
        let mut builder = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        if self.kind == EndpointKind::Emulator {
            builder = builder.no_proxy().pool_idle_timeout(EMULATOR_IDLE);
        }
        let client = builder.build()?;
        if open.len() == MOST {
            open.remove(0);
        }
        open.push((runtime, client.clone()));
        Ok(client)
    }
}
