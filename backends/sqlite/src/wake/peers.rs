//! The processes that wait for messages, as far as this one knows.

use std::sync::{Arc, Mutex};

use queue_core::internal::LockExt as _;

use crate::command::Port;

/// The processes that wait for messages, as far as this one knows. The writer updates them.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The token of this backend's own registration, which is left out.
    own: i64,
    ports: Mutex<Arc<[Port]>>,
}

impl Peers {
    pub(crate) fn none() -> Self {
        Self {
            own: rand::random(),
            ports: Mutex::new(Arc::new([])),
        }
    }

    pub(crate) fn set(&self, mut ports: Vec<Port>) {
        ports.retain(|port| port.token != self.own);
        *self.ports.hold() = ports.into();
    }

    pub(crate) fn ports(&self) -> Arc<[Port]> {
        Arc::clone(&self.ports.hold())
    }

    pub(crate) fn own(&self) -> i64 {
        self.own
    }
}
